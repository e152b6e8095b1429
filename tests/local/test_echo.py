"""What a job hears of its prompt, and jobs that want nothing else."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.local.local_job import LocalJob
from llama_herd.tasks.protocol.events import End, Event, Started, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

PROMPT = "once upon a time in a village far away"


@pytest.fixture(scope="module")
def loaded(tiny_settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(tiny_settings, "cpu")


def events_of(model: LoadedModel, settings: WorkerSettings, **fields: Any) -> list[Event]:
    given: Mapping[str, Any] = {"prompt": PROMPT, **fields}
    return list(LocalJob(GenerationJob.parse(given, settings), model, settings).events())


def result_of(model: LoadedModel, settings: WorkerSettings, **fields: Any) -> Result:
    return Result.from_events(events_of(model, settings, **fields))


def told(result: Result) -> str:
    """What the ids of a prompt stand for."""
    assert result.pieces is not None
    pieces = [result.pieces[token_id].encode("latin-1") for token_id in result.prompt_ids or ()]
    return b"".join(pieces).decode()


def test_a_start_tells_what_the_prompt_s_ids_are(loaded: LoadedModel, tiny_settings: WorkerSettings) -> None:
    result = result_of(loaded, tiny_settings, echo=True, max_tokens=3)
    assert list(result.prompt_ids or ()) == loaded.tokenizer.encode(PROMPT)
    assert (result.prompt_text, result.context_tokens) == (PROMPT, loaded.plan.max_length)
    assert told(result).removeprefix(" ") == PROMPT


def test_nobody_else_hears_of_it(loaded: LoadedModel, tiny_settings: WorkerSettings) -> None:
    started, *_ = events_of(loaded, tiny_settings, max_tokens=1)
    assert isinstance(started, Started)
    assert json.loads(started.to_json()).keys().isdisjoint(("prompt_ids", "prompt_text", "pieces"))


def test_ids_are_told_as_the_text_that_makes_them(loaded: LoadedModel, tiny_settings: WorkerSettings) -> None:
    ids = loaded.tokenizer.encode(PROMPT)
    asked: dict[str, Any] = {"prompt": None, "prompt_ids": ids, "echo": True, "max_tokens": 0}
    assert result_of(loaded, tiny_settings, **asked).prompt_text == PROMPT


def test_nothing_is_added_to_a_prompt_that_says_so(
    loaded: LoadedModel, tiny_settings: WorkerSettings
) -> None:
    whole = result_of(loaded, tiny_settings, echo=True, max_tokens=0).prompt_ids
    bare = result_of(loaded, tiny_settings, echo=True, max_tokens=0, add_special_tokens=False).prompt_ids
    assert whole == (loaded.tokenizer.bos_id, *(bare or ()))


def test_a_job_may_want_nothing_but_its_prompt(loaded: LoadedModel, tiny_settings: WorkerSettings) -> None:
    """Also one that the model has no room for, since nothing is computed."""
    started, end = events_of(loaded, tiny_settings, prompt=PROMPT * 100, echo=True, max_tokens=0)
    assert isinstance(started, Started)
    assert isinstance(end, End)
    assert len(started.prompt_ids or ()) > loaded.plan.max_length
    assert (end.finish_reason, end.stop_reason, end.n, end.attempts) == ("length", "max_tokens", 0, 1)
    assert end.usage is not None
    assert end.usage.total_tokens == len(started.prompt_ids or ())


@pytest.mark.parametrize("n", [1, 3])
def test_a_job_may_want_nothing_but_its_prompt_s_scores(
    loaded: LoadedModel, tiny_settings: WorkerSettings, n: int
) -> None:
    asked: dict[str, Any] = {"prompt_logprobs": 2, "temperature": 0.0 if n == 1 else 1.0, "n": n}
    whole = result_of(loaded, tiny_settings, sampling={**asked, "max_tokens": 1})
    started, scored, end = events_of(loaded, tiny_settings, sampling={**asked, "max_tokens": 0})
    assert isinstance(started, Started)
    assert isinstance(scored, Token)
    assert isinstance(end, End)
    assert (scored.ids, scored.text, end.finish_reason, end.n) == ((), "", "length", 0)
    assert scored.prompt_logprobs == whole.prompt_logprobs
    assert scored.top_prompt_logprobs == whole.top_prompt_logprobs
    assert loaded.cache.pages.num_held == 0


def test_scores_that_are_written_twice_count_once(loaded: LoadedModel, tiny_settings: WorkerSettings) -> None:
    """An attempt that died between them and the end has written no token that says so."""
    asked = {"prompt_logprobs": 0, "max_tokens": 0}
    started, scored, end = events_of(loaded, tiny_settings, sampling=asked)
    once = Result.from_events([started, scored, end])
    assert Result.from_events([started, scored, started, scored, end]) == once


@pytest.mark.parametrize("fields", [{}, {"echo": False}, {"deadline_ms": None}])
def test_nothing_at_all_is_no_job(fields: dict[str, Any]) -> None:
    asked = {"prompt": PROMPT, **fields, "sampling": {"max_tokens": 0, "logprobs": True}}
    with pytest.raises(InvalidJob, match=r"sampling\.max_tokens: must be at least 1, got 0"):
        GenerationJob.parse(asked, Settings())


def test_a_worker_tells_of_its_tokenizer_only_if_it_may(tiny_settings: WorkerSettings) -> None:
    asked: dict[str, Any] = {"echo": True, "tokenizer_info": True, "max_tokens": 0}
    with (
        LoadedModel.load(tiny_settings, "cpu") as model,
        pytest.raises(InvalidJob, match="HERD_TOKENIZER_INFO"),
    ):
        result_of(model, tiny_settings, **asked)
    open_settings = tiny_settings.model_copy(update={"tokenizer_info": True})
    with LoadedModel.load(open_settings, "cpu") as model:
        told = result_of(model, open_settings, **asked).tokenizer_info
        assert told is not None
        assert told.model_max_length == model.plan.max_length
        assert told.bos_token in model.maker.control_ids
        assert result_of(model, open_settings, echo=True, max_tokens=0).tokenizer_info is None


def test_of_a_tokenizer_is_told_beside_a_prompt_alone() -> None:
    with pytest.raises(InvalidJob, match="tokenizer_info needs echo"):
        GenerationJob.parse({"prompt": "x", "tokenizer_info": True}, Settings())


def test_to_ids_nothing_is_added_anyway() -> None:
    with pytest.raises(InvalidJob, match="add_special_tokens needs prompt"):
        GenerationJob.parse({"prompt_ids": [1], "add_special_tokens": False}, Settings())
