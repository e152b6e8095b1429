"""Codes of errors: what follows from one, and what does not."""

import json

import pytest

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.tasks.protocol.events import End, Failure, parse_event

END = {"type": "end", "seq": 1, "job": "a", "epoch": 1, "finish_reason": "error", "n": 0, "attempts": 1}


@pytest.mark.parametrize("code", ErrorCode)
def test_whether_to_try_again_follows_from_the_code(code: ErrorCode) -> None:
    assert Failure(code=code, message="").retriable is code.retriable
    assert GenerationError(code, "").retriable is code.retriable
    assert GenerationError(code, "", not code.retriable).retriable is not code.retriable


def test_some_codes_are_worth_another_try() -> None:
    assert {code for code in ErrorCode if code.retriable} == {"model_error", "out_of_memory"}


def test_an_error_is_plain_text_on_the_wire() -> None:
    failure = Failure(code=ErrorCode.POISONED, message="gave up")
    assert json.loads(failure.model_dump_json()) == {
        "code": "poisoned",
        "message": "gave up",
        "retriable": False,
    }
    assert type(GenerationError(ErrorCode.POISONED, "gave up").args[0]) is str


@pytest.mark.parametrize(("said", "retriable"), [({}, False), ({"retriable": True}, True)])
def test_a_code_of_a_newer_version_is_read(said: dict[str, bool], retriable: bool) -> None:
    end = parse_event(json.dumps(END | {"error": {"code": "fell_asleep", "message": "zzz"} | said}))
    assert isinstance(end, End)
    assert end.error == Failure(code="fell_asleep", message="zzz", retriable=retriable)


def test_an_error_without_a_code_is_none() -> None:
    with pytest.raises(ValueError, match="code"):
        parse_event(json.dumps(END | {"error": {"message": "zzz"}}))
