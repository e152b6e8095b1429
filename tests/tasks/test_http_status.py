"""Every error has an HTTP status, and docs/http.md says which."""

import re
from pathlib import Path
from typing import TypeGuard

import pytest

import llama_herd.errors
from llama_herd.error_code import ErrorCode
from llama_herd.errors import (
    GenerationError,
    HerdError,
    InvalidJob,
    JobConflict,
    ModelFileError,
    QueueFull,
    RecordUnreadable,
    RedisUnavailable,
)
from llama_herd.http_status import http_headers, http_status

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()

#: Errors that no client meets.
OF_WORKERS = ("ModelFileError", "DeviceError", "DeviceLost", "HubUnavailable")

FULL = QueueFull("herd.tales", "jobs", 9, 9, retry_after_s=6.2)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidJob([]), 422),
        (JobConflict("another job"), 409),
        (ModelFileError("not a model"), 400),
        (FULL, 429),
        (RecordUnreadable("damaged"), 500),
        (TimeoutError(), 504),
        (GenerationError("prompt_too_long", "9 tokens"), 422),
        (GenerationError("tokenizer_error", "it fails on this text"), 422),
        (GenerationError("out_of_memory", "no room"), 503),
        (GenerationError("code_of_a_newer_version", "?", retriable=True), 503),
        (GenerationError("code_of_a_newer_version", "?"), 500),
        (ValueError("a bug of the service"), 500),
    ],
)
def test_the_status_tells_whose_fault_it_is_and_whether_to_try_again(error: Exception, status: int) -> None:
    assert http_status(error) == status


def test_what_passes_says_in_whole_seconds_when_to_try_again() -> None:
    assert http_headers(FULL) == {"Retry-After": "7"}
    assert http_headers(RedisUnavailable("away")) == {"Retry-After": "1"}
    assert http_headers(GenerationError("out_of_memory", "no room")) == {"Retry-After": "1"}
    assert http_headers(GenerationError("numeric_error", "NaN")) == {}
    assert http_headers(JobConflict("another job")) == {}


def test_the_page_has_the_status_of_every_code() -> None:
    rows = [f"| `{code}` | {http_status(GenerationError(code, ''))} | {code.meaning} |" for code in ErrorCode]
    assert [row for row in rows if row not in PAGE.splitlines()] == []
    assert len(re.findall(r"^\| `[a-z_]+` \| \d+ \|", PAGE, re.MULTILINE)) == len(rows)


def test_the_page_has_the_status_of_every_error_that_a_client_raises() -> None:
    shown = dict(re.findall(r"^\| `([A-Z]\w+)` \| (\d+) \|", PAGE, re.MULTILINE))
    other = {name: kind for name, kind in vars(llama_herd.errors).items() if is_error(kind)}
    assert {name: other[name].http.status for name in shown if name in other} == {
        name: int(status) for name, status in shown.items() if name != "TimeoutError"
    }
    named = [*shown, "HerdError", "GenerationError", "SettingsError", *OF_WORKERS]
    assert [name for name in other if name not in named] == []


def is_error(found: object) -> TypeGuard[type[HerdError]]:
    return isinstance(found, type) and issubclass(found, HerdError)
