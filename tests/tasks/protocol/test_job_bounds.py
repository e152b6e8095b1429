"""However much is wrong with a job, what is said of it is short, and little of it is looked at."""

import pickle
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from llama_herd.errors import MAX_ERROR_BYTES, MAX_FIELD_ERRORS, FieldError, InvalidJob
from llama_herd.tasks.protocol.chat import MAX_MESSAGES
from llama_herd.tasks.protocol.job import PROMPT_ID_BYTES, GenerationJob
from llama_herd.tasks.protocol.sampling import MAX_BIASES, MAX_STOPS, SamplingParams
from llama_herd.tasks.protocol.terms import MAX_NOTES
from llama_herd.tasks.settings import Settings

SETTINGS = Settings()
MAX_IDS = SETTINGS.max_prompt_bytes // PROMPT_ID_BYTES
#: Each job below is about so long as JSON: as much as a message may be.
NUM_BYTES = 2_000_000

#: Values of every kind of JSON, most of them wrong wherever they stand.
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "minus one": -1,
    "a fraction": 0.5,
    "4,000 digits": 10**4000,
    "5,000 digits": 10**5000,
    "a text": "x",
    "half a character": "\ud800",
    "an empty list": [],
    "a map": {"role": "x"},
}


class Untouchable(list[Any]):
    """Items that must not be looked at."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("an item was looked at")


@lru_cache(maxsize=1)
def crowds(kind: str) -> dict[str, Any]:
    """Values that hold one of this kind as often as a message has room."""
    value = VALUES[kind]
    num = NUM_BYTES // (2 + (4000 if isinstance(value, int) and abs(value) > 1 else len(repr(value))))
    return {
        "a list": [value] * num,
        "a map": {f"k{number}": value for number in range(num // 4)},
        "a map of digits": {str(number): value for number in range(num // 4)},
        "long names": {f"k{number}" * 1000: value for number in range(num // 2000)},
        "a deep list": [[value] * 1000] * (num // 1000),
        "itself": value,
    }


def refused(fields: dict[str, Any]) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        GenerationJob.parse(fields, SETTINGS)
    return caught.value


def check_short(error: InvalidJob) -> None:
    assert len(str(error).encode()) <= MAX_ERROR_BYTES
    assert 1 <= len(error.fields) <= MAX_FIELD_ERRORS


@pytest.mark.long
@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", [*GenerationJob.model_fields, "unknown"])
@pytest.mark.parametrize("kind", VALUES)
def test_no_field_of_a_job_makes_a_long_error(name: str, kind: str) -> None:
    for crowd in crowds(kind).values():
        try:
            GenerationJob.parse({"prompt": "x", "v": 2} | {name: crowd}, SETTINGS)
        except InvalidJob as error:
            check_short(error)
        else:
            assert name == "v", "the version alone is wrong with the others"


@pytest.mark.long
@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", [*SamplingParams.model_fields, "unknown"])
@pytest.mark.parametrize("kind", VALUES)
def test_no_field_of_the_sampling_makes_a_long_error(name: str, kind: str) -> None:
    for crowd in crowds(kind).values():
        check_short(refused({"v": 2, "prompt": "x", "sampling": {name: crowd}}))


@pytest.mark.long
@pytest.mark.parametrize("name", ["role", "content", "unknown"])
@pytest.mark.parametrize("kind", VALUES)
def test_no_field_of_a_message_makes_a_long_error(name: str, kind: str) -> None:
    for crowd in crowds(kind).values():
        check_short(refused({"v": 2, "messages": [{"role": "user", "content": "x", name: crowd}]}))


@pytest.mark.parametrize("place", ["job", "sampling", "message"])
def test_of_many_unknown_fields_the_first_are_named(place: str) -> None:
    unknown = {f"u{number}": 1 for number in range(20_000)}
    jobs: dict[str, dict[str, Any]] = {
        "job": {"prompt": "x", **unknown},
        "sampling": {"prompt": "x", "sampling": unknown},
        "message": {"messages": [{"role": "user", "content": "x", **unknown}]},
    }
    error = refused(jobs[place])
    assert len(error.fields) == MAX_FIELD_ERRORS
    assert error.fields[0].field.endswith("u0")
    assert error.fields[-1].field == "job"
    assert "more errors" in error.fields[-1].message


def test_what_is_wrong_with_known_fields_is_named_beside_many_unknown_ones() -> None:
    unknown = {f"u{number}": 1 for number in range(20_000)}
    names = [entry.field for entry in refused({**unknown, "prompt": "", "priority": 99}).fields]
    assert names[:2] == ["prompt", "priority"]


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"prompt_ids": Untouchable([1] * 300_000)}, MAX_IDS),
        ({"messages": Untouchable([{}] * 300_000)}, MAX_MESSAGES),
        ({"prompt": "x", "metadata": dict.fromkeys(map(str, range(300_000)), "")}, MAX_NOTES),
        ({"prompt": "x", "sampling": {"stop": Untouchable([""] * 300_000)}}, MAX_STOPS),
        ({"prompt": "x", "sampling": {"stop_token_ids": Untouchable([-1] * 300_000)}}, MAX_STOPS),
        ({"prompt": "x", "sampling": {"logit_bias": dict.fromkeys(range(300_000), 0.5)}}, MAX_BIASES),
    ],
)
def test_a_list_that_is_too_long_is_refused_before_an_item_is_looked_at(
    fields: dict[str, Any], limit: int
) -> None:
    (entry,) = refused(fields).fields
    assert entry.message == f"must have at most {limit} items, got 300000"


def test_a_list_is_left_at_its_first_wrong_item() -> None:
    for name, wrong in (("stop", ""), ("stop_token_ids", -1)):
        (entry,) = refused({"prompt": "x", "sampling": {name: [wrong] * MAX_STOPS}}).fields
        assert entry.field == f"sampling.{name}.0"
    errors = refused({"messages": [{"role": "nobody", "content": "x"}] * MAX_MESSAGES}).fields
    assert [entry.field for entry in errors] == ["messages.0.role"]


def test_a_number_that_no_field_can_hold_is_not_repeated() -> None:
    for name in ("max_tokens", "min_tokens", "seed", "top_k"):
        (entry,) = refused({"prompt": "x", "sampling": {name: 10**5000}}).fields
        assert entry.message.endswith("got a number of 16610 bits")


def test_the_last_of_many_errors_counts_the_others() -> None:
    error = InvalidJob([FieldError(f"f{number}", "is wrong") for number in range(1000)])
    assert error.fields[MAX_FIELD_ERRORS - 2] == FieldError("f18", "is wrong")
    assert error.fields[-1] == FieldError("job", "has at least 981 more errors")
    assert InvalidJob(error.fields).fields == error.fields


def test_long_names_and_messages_are_cut() -> None:
    error = InvalidJob([FieldError("é" * 100_000, "\ud800" * 100_000)] * 1000)
    check_short(error)
    assert error.fields[-1].message == f"has at least {1000 - len(error.fields) + 1} more errors"
    assert all(field.isascii() or field.endswith("...") for field, _ in error.fields)


def test_an_error_survives_the_way_to_another_process() -> None:
    error = InvalidJob([FieldError("prompt", "must not be empty")])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.fields) == ("prompt: must not be empty", error.fields)
