"""Events and the fold that makes a result of them."""

import json
from math import inf, nan

import pytest
from pydantic import ValidationError

from llama_herd.errors import DeadlineExceeded, GenerationError, RecordUnreadable
from llama_herd.tasks.protocol.events import (
    LOWEST_LOGPROB,
    End,
    Event,
    Failure,
    FinishReason,
    Started,
    Timings,
    Token,
    Usage,
    parse_event,
)
from llama_herd.tasks.protocol.result import Result

STARTED = Started(
    at_ms=1,
    seq=1,
    job="a",
    epoch=1,
    attempt=1,
    worker="w1",
    model="m",
    seed=7,
    prompt_tokens=3,
    cached_tokens=0,
)
HELLO = Token(seq=2, job="a", epoch=1, i=0, ids=(5, 6), text="Hel")
RESUMED = STARTED.model_copy(update={"seq": 3, "epoch": 2, "attempt": 2, "worker": "w2", "cached_tokens": 3})
REST = Token(seq=4, job="a", epoch=2, i=2, ids=(7,), text="lo")
END = End(
    seq=5,
    job="a",
    epoch=2,
    finish_reason="stop",
    n=3,
    usage=Usage(prompt_tokens=3, completion_tokens=3, total_tokens=6),
    text_sha256="00",
    attempts=2,
    worker="w2",
    timings=Timings(queue_s=0.5, ttft_s=0.75, total_s=1.0),
)
EVENTS: list[Event] = [STARTED, HELLO, RESUMED, REST, END]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_what_it_was_after_the_wire(event: Event) -> None:
    assert parse_event(event.to_json()) == event
    assert parse_event(event.to_json().encode()) == event


def test_a_token_is_written_without_what_it_does_not_use() -> None:
    assert json.loads(HELLO.to_json()) == {
        "v": 1,
        "seq": 2,
        "job": "a",
        "epoch": 1,
        "type": "token",
        "i": 0,
        "ids": [5, 6],
        "text": "Hel",
    }
    used = HELLO.model_copy(update={"choice": 1, "logprobs": (-0.5, -1.0)})
    assert json.loads(used.to_json())["logprobs"] == [-0.5, -1.0]


def test_an_end_shows_what_is_not_known_as_null() -> None:
    end = json.loads(End(seq=1, job="a", epoch=1, finish_reason="cancelled", n=0, attempts=0).to_json())
    assert end["final"] is True
    assert [end[name] for name in ("usage", "text_sha256", "error", "worker", "timings")] == [None] * 5


@pytest.mark.parametrize("odd", [-inf, inf, nan])
def test_a_log_probability_that_json_cannot_write_is_the_lowest(odd: float) -> None:
    fields = {"logprobs": (odd, -0.5), "prompt_logprobs": (odd,)}
    tops = {"top_logprobs": (((5, odd),), ((6, -0.5),)), "top_prompt_logprobs": (((5, odd),),)}
    token = Token(seq=2, job="a", epoch=1, i=0, ids=(5, 6), text="", **fields, **tops)
    assert token.logprobs == (LOWEST_LOGPROB, -0.5)
    assert token.prompt_logprobs == (LOWEST_LOGPROB,)
    assert token.top_logprobs == (((5, LOWEST_LOGPROB),), ((6, -0.5),))
    assert parse_event(token.to_json()) == token
    result = Result.from_events([STARTED, token, END])
    assert Result.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize("written", ["null", "-Infinity", "NaN"])
def test_a_log_probability_that_another_version_has_written_is_read(written: str) -> None:
    text = HELLO.model_copy(update={"logprobs": (-1.25, -0.5)}).to_json().replace("-1.25", written)
    token = parse_event(text)
    assert isinstance(token, Token)
    assert token.logprobs == (LOWEST_LOGPROB, -0.5)


def test_an_end_without_a_stop_reason_is_read() -> None:
    """As the scripts write it."""
    fields = json.loads(END.to_json())
    assert fields.pop("stop_reason", "none") is None
    old = parse_event(json.dumps(fields))
    assert old == END
    assert Result.from_events([STARTED, HELLO, old]).stop_reason is None


@pytest.mark.parametrize("stop_reason", ["END", "7", 7, "max_tokens", None])
def test_a_stop_reason_is_what_it_was_after_the_wire(stop_reason: str | int | None) -> None:
    end = parse_event(END.model_copy(update={"stop_reason": stop_reason}).to_json())
    result = Result.from_events([STARTED, HELLO, end])
    assert (result.stop_reason, type(result.stop_reason)) == (stop_reason, type(stop_reason))
    assert Result.model_validate_json(result.model_dump_json()) == result


def test_unknown_fields_of_later_versions_are_passed_over() -> None:
    assert parse_event('{"v":1,"seq":2,"job":"a","epoch":1,"type":"token","i":0,"ids":[],"text":"","new":1}')


@pytest.mark.parametrize("text", ["{}", '{"type":"token"}', '{"type":"other","seq":1}', "x", '{"v":2}'])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        parse_event(text)


def test_a_result_is_the_fold_of_all_events() -> None:
    assert Result.from_events(EVENTS) == Result(
        job="a",
        text="Hello",
        ids=(5, 6, 7),
        finish_reason="stop",
        usage=END.usage,
        cached_tokens=0,  # as the first attempt found
        error=None,
        seed=7,
        attempts=2,
        worker="w2",
        timings=END.timings,
    )


def test_a_job_that_never_started_has_a_result_too() -> None:
    end = End(seq=1, job="a", epoch=1, finish_reason="cancelled", n=0, attempts=0)
    result = Result.from_events([end])
    assert (result.text, result.ids, result.seed, result.finish_reason) == ("", (), None, "cancelled")


def test_events_without_an_end_have_no_result() -> None:
    with pytest.raises(RecordUnreadable, match="no end"):
        Result.from_events(EVENTS[:-1])


def result_of(finish_reason: FinishReason, error: Failure | None = None) -> Result:
    return Result.from_events(
        [End(seq=1, job="a", epoch=1, finish_reason=finish_reason, n=0, attempts=0, error=error)]
    )


def test_a_result_raises_only_when_asked_and_only_for_errors() -> None:
    for finish_reason in ("stop", "length", "cancelled"):
        result = result_of(finish_reason)
        assert result.raise_for_error() is result
    with pytest.raises(DeadlineExceeded, match="job a"):
        result_of("deadline").raise_for_error()
    failure = Failure(code="poisoned", message="gone", retriable=True)
    with pytest.raises(GenerationError) as caught:
        result_of("error", failure).raise_for_error()
    assert (caught.value.code, caught.value.message, caught.value.retriable) == ("poisoned", "gone", True)
