"""What ended an output is said exactly: which stop string or id, or which limit."""

from pathlib import Path
from typing import Any

import pytest

from llama_herd.local.local_job import LocalJob
from llama_herd.model.parsers.formats import REASONING_FORMATS
from llama_herd.tasks.protocol.events import End, Event, StopReason, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.engine.detokenizer import Detokenizer, ReasoningEnd
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import EOS_ID, write_tiny_gguf


def sequence(model: LoadedModel, **sampling: Any) -> Sequence:
    job = GenerationJob.model_validate({"prompt": "a tale", "sampling": {"max_tokens": 9, **sampling}})
    return model.maker.sequences("job", job, now_ms=0)[0]


def ended(sequence: Sequence, ids: list[int]) -> tuple[str | None, StopReason]:
    sequence.replay(ids)
    return sequence.finish_reason, sequence.stop_reason


@pytest.fixture
def words(model: LoadedModel) -> list[int]:
    """Of the text ` the herd token`."""
    return model.tokenizer.encode("the herd token", add_bos=False)


@pytest.mark.parametrize(
    ("stop", "met"),
    [
        (["herd"], "herd"),
        (["none", "token"], "token"),
        (["token", "herd", "e h"], "e h"),
        (["herd token", "herd"], "herd"),  # which is whole before the other one is
    ],
)
def test_the_stop_string_that_is_met_first_is_named(
    model: LoadedModel, words: list[int], stop: list[str], met: str
) -> None:
    assert ended(sequence(model, stop=stop), words) == ("stop", met)


def test_of_stop_strings_that_one_token_brings_the_one_in_front_is_named(
    model: LoadedModel, words: list[int]
) -> None:
    assert model.tokenizer.pieces[words[1]] == b" herd"
    assert ended(sequence(model, stop=["rd", "er"]), words) == ("stop", "er")
    assert ended(sequence(model, stop=["er", "erd"]), words) == ("stop", "er")
    assert ended(sequence(model, stop=["erd", "er"]), words) == ("stop", "erd")


def test_a_stop_id_is_named_also_if_it_is_the_end_of_sequence(model: LoadedModel, words: list[int]) -> None:
    assert ended(sequence(model, stop_token_ids=words[1:2]), words[:2]) == ("stop", words[1])
    assert ended(sequence(model, stop_token_ids=[EOS_ID]), [EOS_ID]) == ("stop", EOS_ID)
    assert ended(sequence(model), [EOS_ID]) == ("stop", None)


@pytest.mark.parametrize("max_tokens", [2, 9])
def test_a_stop_string_in_what_might_have_become_reasoning_is_named_at_the_end(
    model: LoadedModel, max_tokens: int
) -> None:
    """White space is held until it is known what it leads to."""
    one = sequence(model, stop=["\n"], max_tokens=max_tokens)
    end = ReasoningEnd(REASONING_FORMATS["think"], begins_in_reasoning=False)
    one.detokenizer = Detokenizer(model.tokenizer.pieces, one.params.stop, reasoning_end=end)
    ids = [*model.tokenizer.encode("\n", add_bos=False), EOS_ID][:max_tokens]
    assert one.replay(ids) == " "
    assert (one.finish_reason, one.stop_reason) == ("stop", "\n")


def test_the_limit_that_was_met_is_named(tmp_path: Path, words: list[int]) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", context_length=16)
    short = LoadedModel.load(WorkerSettings(model=path, slots=1, threads=1), "cpu")
    one = sequence(short, max_tokens=20)
    num_left = 16 - len(one.prompt_ids)
    assert ended(one, words[:1] * num_left) == ("length", "context")
    assert ended(sequence(short, max_tokens=num_left), words[:1] * num_left) == ("length", "max_tokens")
    assert ended(sequence(short, max_tokens=1), words[:1]) == ("length", "max_tokens")


def run(settings: WorkerSettings, **sampling: Any) -> list[Event]:
    fields = {"prompt": "a tale", "sampling": {"max_tokens": 12, "seed": 5, **sampling}}
    job = LocalJob.load(fields, settings)
    return list(job.events())


def test_the_end_and_the_result_say_it(tiny_settings: WorkerSettings) -> None:
    plain = Result.from_events(run(tiny_settings, ignore_eos=True))
    assert (plain.finish_reason, plain.stop_reason) == ("length", "max_tokens")
    stopped = run(tiny_settings, ignore_eos=True, stop_token_ids=[plain.ids[3]])
    assert isinstance(stopped[-1], End)
    assert stopped[-1].stop_reason == plain.ids[3]
    assert Result.from_events(stopped).stop_reason == plain.ids[3]


def test_each_of_several_outputs_has_its_own(tiny_settings: WorkerSettings) -> None:
    plain = Result.from_events(run(tiny_settings, ignore_eos=True, n=3))
    assert plain.choices is not None
    stop_id = plain.choices[1].ids[2]
    events = run(tiny_settings, ignore_eos=True, n=3, stop_token_ids=[stop_id])
    told = {one.choice: one.stop_reason for one in events if isinstance(one, Token) and one.finish_reason}
    expected = {choice.index: stop_id if stop_id in choice.ids else "max_tokens" for choice in plain.choices}
    assert told == expected
    result = Result.from_events(events)
    assert result.choices is not None
    assert {choice.index: choice.stop_reason for choice in result.choices} == expected
    assert (set(expected.values()) > {stop_id}, result.stop_reason) == (True, None)
    tokens = [one for one in events if isinstance(one, Token) and not one.finish_reason]
    assert all(one.stop_reason is None for one in tokens)
