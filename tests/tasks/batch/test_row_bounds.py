"""Whatever stands wherever in a row: reading it makes no more of it than its bytes allow."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.batch.row_request import RequestReader
from llama_herd.tasks.batch.source_row import NumberedLine, parse_row
from llama_herd.tasks.openai.other_fields import NEUTRAL
from llama_herd.tasks.openai.request_body import CHAT, CHAT_NAMES, COMPLETIONS, ENDPOINTS
from llama_herd.tasks.protocol.bounded_json import MAX_CONTAINERS
from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.settings import Settings
from tests.python_memory import peak_bytes

LINE_BYTES = 1 << 20
#: Bytes that may be held for each byte of a line while it is read, and for each object or array of it: of an
#: object both its pairs and what is made of them.
BYTES_EACH, BYTES_OF_CONTAINER = 24, 256
MARK = "@"

LINE: dict[str, Any] = {"custom_id": "a", "method": "POST"}
SOURCE = {CHAT: "messages", COMPLETIONS: "prompt"}
USER = {"role": "user", "content": "x"}
CALL = {"id": "a", "type": "function", "function": {"name": "a", "arguments": MARK}}
FIELDS = sorted({*GenerationJob.model_fields, *SamplingParams.model_fields, *NEUTRAL, *CHAT_NAMES, "tools"})


def request(endpoint: str, **fields: Any) -> dict[str, Any]:
    source = {"messages": [USER]} if endpoint == CHAT else {"prompt": "x"}
    return {**LINE, "url": endpoint, "body": {**source, **fields}}


#: Lines with a mark in each place where something may stand.
PLACES: dict[str, Any] = {
    **{f"of a job: {name}": {"prompt": "x", name: MARK} for name in FIELDS},
    **{f"{name}: {url}": request(url, **{name: MARK}) for name in FIELDS for url in ENDPOINTS},
    **{
        f"of a turn: {name}": request(CHAT, messages=[{**USER, name: MARK}])
        for name in ChatMessage.model_fields
    },
    **{f"of a line: {name}": {**request(CHAT), name: MARK} for name in request(CHAT)},
    "arguments of a call": request(CHAT, messages=[{"role": "assistant", "tool_calls": [CALL]}]),
    "text of a schema": request(CHAT, structured_outputs={"json": MARK}),
    "nothing but it": MARK,
}


def many(unit: str, opening: str = "[", closing: str = "]") -> Callable[[int], str]:
    return lambda room: opening + ",".join([unit] * (room // (len(unit) + 1))) + closing


def nested(room: int) -> str:
    return "[" * (room // 2) + "]" * (room // 2)


def names(room: int) -> str:
    return "{" + ",".join(f'"{number:x}":0' for number in range(room // 10)) + "}"


FILLINGS: Mapping[str, Callable[[int], str]] = {
    "arrays": many("[]"),
    "objects": many("{}"),
    "texts": many('"a"'),
    "numbers": many("1e9"),
    "names": names,
    "one name": many('"a":0', "{", "}"),
    "nested": nested,
    "digits": lambda room: "9" * room,
    "escapes": lambda room: '"' + "\\u00e9" * (room // 6) + '"',
    "a text with arrays": lambda room: json.dumps(many("[]")(room)),
    "a text with nested ones": lambda room: json.dumps(nested(room)),
    "a text with names": lambda room: json.dumps(names(room // 2)),
}


@pytest.mark.parametrize("filling", FILLINGS)
def test_a_row_takes_memory_by_its_bytes(filling: str) -> None:
    """In two places, others for each filling."""
    for place in random.Random(filling).sample(sorted(PLACES), 2):
        check(place, filling)


@pytest.mark.slow
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("place", PLACES)
def test_a_row_takes_memory_by_its_bytes_in_each_place(place: str, filling: str) -> None:
    check(place, filling)


def check(place: str, filling: str) -> None:
    before, after = json.dumps(PLACES[place]).split(json.dumps(MARK))
    line = (before + FILLINGS[filling](LINE_BYTES - 400) + after).encode()
    reader = RequestReader(Settings.read(max_prompt_bytes=LINE_BYTES), RowOptions(), "run")

    def read_it() -> None:
        row = parse_row(NumberedLine(1, line))
        assert row is not None
        reader.read(row)

    assert peak_bytes(read_it) <= BYTES_EACH * len(line) + BYTES_OF_CONTAINER * MAX_CONTAINERS, place
