"""The schemas for other languages: current, and true of what is really sent."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llama_herd.tasks.ledger.ledger import end_tail
from llama_herd.tasks.protocol.events import Failure, parse_event
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.schema import schema_text, schemas
from tests.tasks.protocol.test_events import EVENTS

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.mark.parametrize("name", schemas())
def test_the_committed_schema_is_current(name: str) -> None:
    expected = schema_text(schemas()[name])
    found = (FOLDER / name).read_text(encoding="utf-8")
    assert found == expected, "run: python -m llama_herd.tasks.schema docs/schemas"


def errors(name: str, value: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schemas()[name]).iter_errors(value)]


@pytest.mark.long
def test_jobs_and_events_are_what_the_schemas_say() -> None:
    job = GenerationJob(prompt="x", metadata={"k": "v"})
    assert errors("job.json", json.loads(job.to_json())) == []
    assert errors("job.json", {"prompt": "x", "priority": 1, "n": 2})
    for event in EVENTS:
        assert errors("event.json", json.loads(event.to_json())) == []
    assert errors("event.json", {"type": "token"})


def test_an_end_that_a_script_writes_is_what_the_schema_says() -> None:
    """And has the fields with which every reader passes it on."""
    head = '{"v":1,"seq":1,"job":"a","epoch":1,"type":"end","n":0,"attempts":0,"worker":null,'
    for tail in (end_tail("cancelled"), end_tail("error", Failure(code="poisoned", message="gave up"))):
        assert errors("event.json", json.loads(head + tail)) == []
        assert json.loads(parse_event(head + tail).to_json()) == json.loads(head + tail)
