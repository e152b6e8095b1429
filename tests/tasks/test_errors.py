"""Errors go whole from process to process: out of a pool of processes, or a shop's task that submits."""

import json
import pickle

import pytest

from llama_herd.error_code import ErrorCode
from llama_herd.errors import (
    DeadlineExceeded,
    FieldError,
    GenerationError,
    HerdError,
    InvalidJob,
    JobNotFound,
    KeptFull,
    NotPermitted,
    NotReplicated,
    QueueFull,
)
from llama_herd.tasks.app import app

#: All with arguments of their own, and some that have a text.
ERRORS: tuple[HerdError, ...] = (
    GenerationError(ErrorCode.OUT_OF_MEMORY, "no room", retriable=False),
    InvalidJob([FieldError("sampling.n", "must be at most 8"), FieldError("prompt", "missing")]),
    KeptFull(1200, 1000),
    NotReplicated("a", 1, 2, 0.5),
    QueueFull("herd.tales", "jobs", 9, 8, retry_after_s=6.2),
    JobNotFound.for_id("a"),
    NotPermitted("Redis at redis://host"),
    DeadlineExceeded(),
)


def kinds(kind: type[HerdError]) -> set[type[HerdError]]:
    return {kind}.union(*map(kinds, kind.__subclasses__()))


def test_every_error_with_arguments_of_its_own_is_tried() -> None:
    public = {kind for kind in kinds(HerdError) if kind.__module__ == HerdError.__module__}
    assert {kind for kind in public if "__init__" in vars(kind)} <= set(map(type, ERRORS))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickle_and_celerys_json(error: HerdError) -> None:
    stored = json.dumps(app.backend.prepare_exception(error, serializer="json"))
    for read in (pickle.loads(pickle.dumps(error)), app.backend.exception_to_python(json.loads(stored))):
        assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))
