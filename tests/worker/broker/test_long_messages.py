"""What is unpacked is bounded and whole, and what is too long gets a short stand-in if it names a job."""

import json

import pytest
from kombu import compression

from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.worker.broker.long_messages import (
    NUM_BYTES,
    TooLong,
    _formats,
    short_stand_in,
    unpack_bounded,
)


@pytest.mark.parametrize("name", [*_formats()])
def test_what_is_unpacked_is_whole_and_no_longer_than_allowed(name: str) -> None:
    text = b"x" * 1000
    make, (packed, _) = _formats()[name], compression.compress(text, name)
    assert unpack_bounded(make, len(text), packed) == text
    with pytest.raises(TooLong):
        unpack_bounded(make, len(text) - 1, packed)
    with pytest.raises(EOFError):
        unpack_bounded(make, len(text), packed[:-1])


@pytest.mark.parametrize(
    ("task", "task_id", "is_known"),
    [
        (TASK_NAME, "job", True),
        ("their.task", "job", False),
        (TASK_NAME, None, False),
        (TASK_NAME, "x" * 129, False),
    ],
    ids=["a job", "another task", "no id", "an id too long for a job"],
)
def test_who_names_a_job_gets_a_stand_in(task: str, task_id: str | None, is_known: bool) -> None:
    raw = json.dumps({"body": "x" * 1000, "headers": {"task": task, "id": task_id}}).encode()
    found = short_stand_in(raw, "herd.m")
    assert (found is not None) == is_known
    if found is not None:
        headers = json.loads(found)["headers"]
        assert (headers["task"], headers["id"], headers[NUM_BYTES]) == (task, task_id, len(raw))
        assert len(found) < len(raw)
