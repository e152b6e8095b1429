"""Every error has an HTTP status, and docs/http.md says which."""

import re
from pathlib import Path
from typing import TypeGuard

import pytest

import llama_herd
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
    rows = re.findall(r"^\| (\d+) \| (`.+`) \|$", PAGE, re.MULTILINE)
    shown = {code: int(status) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert shown == {code: http_status(GenerationError(code, "")) for code in ErrorCode}


def test_the_page_has_the_status_of_every_error() -> None:
    shown = dict(re.findall(r"^\| `([A-Z]\w+)` \| (\d+) \|", PAGE, re.MULTILINE))
    of_gateways = dict(re.findall(r"`([A-Z]\w+)` \((\d+)\)", PAGE))
    assert shown.pop("TimeoutError") == str(http_status(TimeoutError()))
    assert shown.keys() <= set(llama_herd.__all__)
    other = {name: kind for name, kind in vars(llama_herd.errors).items() if is_error(kind)}
    statuses = {name: str(kind.http.status) for name, kind in other.items()}
    assert shown | of_gateways == {name: statuses.get(name) for name in (*shown, *of_gateways)}
    named = [*shown, *of_gateways, "HerdError", "GenerationError", "SettingsError", *OF_WORKERS]
    assert [name for name in other if name not in named] == []


def is_error(found: object) -> TypeGuard[type[HerdError]]:
    return isinstance(found, type) and issubclass(found, HerdError)
