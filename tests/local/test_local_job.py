"""A job without queue and Redis has the events of one that came through them."""

from pathlib import Path

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.local.local_job import LocalJob
from llama_herd.tasks.protocol.events import End, Started, Token
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.settings import WorkerSettings

FIELDS = {"prompt": "the llama", "sampling": {"max_tokens": 40, "seed": 5, "temperature": 0.0}}


def local_job(tiny_settings: WorkerSettings, **fields: object) -> LocalJob:
    return LocalJob.load({**FIELDS, **fields}, tiny_settings)


def test_events_are_dense_and_end_once(tiny_settings: WorkerSettings) -> None:
    started, *tokens, end = local_job(tiny_settings).events()
    assert isinstance(started, Started)
    assert all(isinstance(token, Token) for token in tokens)
    assert isinstance(end, End)
    assert [event.seq for event in (started, *tokens, end)] == list(range(1, len(tokens) + 3))
    assert (started.seed, end.n) == (5, len(tokens))


def test_a_cancelled_job_keeps_its_text(tiny_settings: WorkerSettings) -> None:
    job = local_job(tiny_settings)
    events = []
    for event in job.events():
        events.append(event)
        if len(events) == 4:
            job.cancel()
    result = Result.from_events(events)
    assert (result.finish_reason, len(result.ids)) == ("cancelled", 3)


def test_a_job_that_is_cancelled_before_it_begins_computes_nothing(tiny_settings: WorkerSettings) -> None:
    job = local_job(tiny_settings)
    job.cancel()
    (end,) = job.events()
    assert isinstance(end, End)
    assert (end.finish_reason, end.n) == ("cancelled", 0)


def test_a_prompt_that_is_too_long_ends_as_in_a_worker(tiny_settings: WorkerSettings) -> None:
    (end,) = local_job(tiny_settings, prompt="a" * 2000).events()
    assert isinstance(end, End)
    assert end.error is not None
    assert (end.finish_reason, end.error.code) == ("error", "prompt_too_long")


def test_a_wrong_field_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="prompt: must not be empty"):
        LocalJob.load({"prompt": ""}, WorkerSettings(model=tmp_path / "none.gguf"))


def test_scores_come_with_what_their_ids_stand_for(tiny_settings: WorkerSettings) -> None:
    asked = {"max_tokens": 8, "seed": 5, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1}
    job = local_job(tiny_settings, sampling=asked)
    result = Result.from_events(job.events())
    named = {
        token_id
        for tops in (result.top_logprobs, result.top_prompt_logprobs)
        for top in tops or ()
        for token_id, _ in top
    }
    assert result.pieces is not None
    assert result.pieces.keys() >= named.union(result.ids)
    joined = b"".join(result.pieces[token_id].encode("latin-1") for token_id in result.ids)
    assert joined.decode(errors="replace") == result.text


def test_without_scores_nothing_is_said_of_ids(tiny_settings: WorkerSettings) -> None:
    events = [event for event in local_job(tiny_settings).events() if isinstance(event, Token)]
    assert all(event.pieces is None for event in events)
