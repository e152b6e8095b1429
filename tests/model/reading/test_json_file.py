"""JSON files are read up to a limit of bytes, values and nesting, and an error names the limit."""

import os
from pathlib import Path

import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.files.safetensors_model import CONFIG_NAME
from llama_herd.model.files.sketch import Sketch
from llama_herd.model.reading import json_file
from llama_herd.model.reading.json_file import MAX_DEPTH, parse_json, read_json
from tests.python_memory import peak_bytes

MAX_BYTES = 1 << 20


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_what_is_within_the_limits_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, {"b": null}], "c": null}')
    assert dict(read_json(path, MAX_BYTES)) == {"a": [1, {"b": None}], "c": None}
    assert parse_json(nested(MAX_DEPTH), "x")
    assert parse_json("7", "x") == 7
    assert parse_json(r'["\ud83e\udd99", "\\ud83e"]', "x") == ["🦙", r"\ud83e"]


BAD_TEXTS = {
    "long": (" " * (MAX_BYTES + 1), "longer than the limit of 1048576 bytes"),
    "one too deep": (nested(MAX_DEPTH + 1), "nested more than 32 deep, which is the limit"),
    "deep lists": ("[" * 40 + "]" * 40, "nested more than 32 deep"),
    "far too deep": ("[" * MAX_BYTES, "nested more than 32 deep"),
    "no JSON": ("{'a'}", "not JSON: Expecting property name"),
    "long number": ("9" * 5_000, "not JSON: Exceeds the limit"),
    "half an escape": ('{"a": "\\ud8"}', "not JSON"),
    "half a character": ('{"a": ["\\uD83E"]}', "holds a lone surrogate, which is no character"),
    "half a key": ('{"\\udd99": 1}', "holds a lone surrogate"),
    "a list": ("[]", "holds a list, an object is needed"),
}


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_what_is_over_a_limit_is_refused_by_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelFileError, match=f"config.json: {message}"):
        read_json(path, MAX_BYTES)


@pytest.mark.parametrize("content", [b"\xff", b'{"a": "\xed\xa0\x80"}', '{"a": 1}'.encode("utf-16")])
def test_what_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"config\.json: not UTF-8 at byte"):
        read_json(path, MAX_BYTES)


@pytest.mark.parametrize("text", ["[[],{}]", '{"a": 1, "b": [2]}', "[1, 2, 3]"])
def test_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert parse_json(text, "x")
    monkeypatch.setattr(json_file, "MAX_VALUES", 2)
    monkeypatch.setattr("json.loads", None)
    with pytest.raises(ModelFileError, match="x: holds over 2 values, which is the limit"):
        parse_json(text, "x")


def test_a_file_without_end_is_not_read_to_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    def read_it() -> None:
        with pytest.raises(ModelFileError, match="longer than the limit"):
            read_json(path, MAX_BYTES)

    assert peak_bytes(read_it) < 3 * MAX_BYTES


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / CONFIG_NAME)
    with pytest.raises(ModelFileError, match=r"config\.json: not a regular file\. Fetch it again"):
        read_json(tmp_path / CONFIG_NAME, MAX_BYTES)
    assert Sketch.from_path(tmp_path).header == {}
