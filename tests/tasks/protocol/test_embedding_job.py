"""Jobs of texts, their events, and the fold that makes vectors of them."""

import struct
from base64 import b64encode
from typing import Any

import pytest

from llama_herd.errors import InvalidJob, RecordUnreadable
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import End, Event, Started, Vectors, parse_event, vectors_json
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.terms import Notices, Terms
from llama_herd.tasks.protocol.text_job import ID_BYTES, MAX_TEXTS
from llama_herd.tasks.settings import Settings

SETTINGS = Settings(max_prompt_bytes=1000)
JOB = {"kind": "embed", "texts": ["a llama", "an alpaca"]}


def told(fields: dict[str, Any]) -> str:
    with pytest.raises(InvalidJob) as caught:
        parse_job(fields, SETTINGS)
    return str(caught.value)


def test_the_kind_says_which_job_it_is() -> None:
    assert isinstance(parse_job(JOB, SETTINGS), EmbeddingJob)
    assert isinstance(parse_job({"prompt": "x"}, SETTINGS), GenerationJob)
    assert told({**JOB, "kind": "paint"}).startswith("kind: ")


def test_both_kinds_have_the_same_terms() -> None:
    terms = Terms.model_fields.keys() | Notices.model_fields.keys()
    assert terms <= GenerationJob.model_fields.keys() & EmbeddingJob.model_fields.keys()


@pytest.mark.parametrize("source", [{"texts": ["a", "b"]}, {"text_ids": [[1], [2, 3]]}])
def test_a_job_is_what_it_was_in_its_record(source: dict[str, Any]) -> None:
    job = parse_job({"kind": "embed", **source, "dimensions": 8, "metadata": {"b": "1", "a": "2"}}, SETTINGS)
    assert parse_job(job.to_json(), SETTINGS) == parse_job(job, SETTINGS) == job


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"texts": None}, "texts: exactly one of texts and text_ids is required"),
        ({"text_ids": [[1]]}, "texts: exactly one of texts and text_ids is required"),
        ({"texts": []}, "texts: must not be empty"),
        ({"texts": ["a", ""]}, "texts.1: must not be empty"),
        ({"texts": None, "text_ids": [[1], []]}, "text_ids.1: must not be empty"),
        ({"texts": ["a\0"]}, "texts.0: must not contain a NUL character"),
        (
            {"texts": ["a"] * (MAX_TEXTS + 1)},
            f"texts: must have at most {MAX_TEXTS} items, got {MAX_TEXTS + 1}",
        ),
        ({"texts": ["a" * 600, "b" * 401]}, "at most 1000 bytes, got 1001"),
        ({"texts": None, "text_ids": [[1] * 251]}, f"at most {1000 // ID_BYTES} items, got 251"),
        ({"texts": None, "text_ids": [[1]], "prompt_name": "query"}, "prompt_name needs texts"),
        ({"dimensions": 0}, "dimensions: "),
        ({"prompt": "x"}, "prompt: unknown field"),
        ({"truncate": "middle"}, "truncate: "),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], words: str) -> None:
    assert words in told({**JOB, **fields})


STARTED = Started(
    at_ms=1, seq=1, job="a", epoch=1, attempt=1, worker="w", model="m", seed=7, texts=3, prompt_tokens=9
)


def base64_of(*numbers: float) -> str:
    return b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def events(*, has_all: bool) -> list[Event]:
    first = Vectors(seq=2, job="a", epoch=1, texts=(2, 0), vectors=(base64_of(5, 6), base64_of(1, 2)))
    second = Vectors(seq=3, job="a", epoch=1, texts=(1,), vectors=(base64_of(3, 4),))
    end = End(seq=4, job="a", epoch=1, finish_reason="stop" if has_all else "cancelled", n=3, attempts=1)
    return [STARTED, first, *([second] if has_all else []), end]


@pytest.mark.parametrize("event", events(has_all=True))
def test_an_event_is_what_it_was_after_the_wire(event: Event) -> None:
    assert parse_event(event.to_json()) == event


def test_vectors_are_written_as_their_model_writes_them() -> None:
    event = Vectors(seq=2, job="a", epoch=1, texts=(2, 0), vectors=("AAAA", "BBBB"))
    assert vectors_json(2, "a", 1, {2: "AAAA", 0: "BBBB"}) == event.to_json()


def test_a_result_has_the_vectors_in_the_order_of_the_texts() -> None:
    result = Result.from_events(events(has_all=True))
    assert [list(one) for one in result.floats] == [[1, 2], [3, 4], [5, 6]]
    assert Result.model_validate_json(result.model_dump_json()) == result
    assert (result.text, result.choices) == ("", None)


def test_a_result_says_which_vectors_were_not_computed() -> None:
    result = Result.from_events(events(has_all=False))
    assert result.vectors == (base64_of(1, 2), None, base64_of(5, 6))
    with pytest.raises(RecordUnreadable, match="cancelled"):
        _ = result.floats
