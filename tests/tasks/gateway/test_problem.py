"""Each of our errors says how the gateway tells it."""

import pytest

from llama_herd.error_code import ErrorCode
from llama_herd.errors import (
    DeadlineExceeded,
    FieldError,
    FileLost,
    GenerationError,
    HerdError,
    InvalidJob,
    JobConflict,
    JobNotFound,
    JobRunning,
    KeptFull,
    NotPermitted,
    NotReplicated,
    QueueFull,
    RecordUnreadable,
    RedisUnavailable,
    SettingsError,
    StorageFull,
    StorageUnavailable,
    StreamRewritten,
    WorkerNotFound,
)
from llama_herd.http_status import http_status
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.protocol.events import End, Failure

#: An error of each kind that has words of its own.
TOLD: tuple[HerdError, ...] = (
    GenerationError(ErrorCode.OUT_OF_MEMORY, "no {room}"),
    InvalidJob([FieldError("sampling.n", "must be at most 8"), FieldError("the {prompt}", "unknown field")]),
    JobConflict("another job"),
    JobRunning("it runs"),
    JobNotFound.for_id("a"),
    KeptFull(1200, 1000),
    QueueFull("herd.tales", "jobs", 9, 8, retry_after_s=6.2),
    NotPermitted("Redis at secret"),
    NotReplicated("a", 1, 2, 0.5),
    RedisUnavailable("Redis at secret"),
    WorkerNotFound("no worker w is up"),
    FileLost("/secret"),
    StorageFull("there is no room in /srv"),
    StorageUnavailable("/secret"),
    DeadlineExceeded(),
    RecordUnreadable("key secret"),
    StreamRewritten.behind("a", 3),
    SettingsError("a setting"),
    HerdError("else"),
)
#: Kinds that are told as a wider one, or that no client meets.
WIDER = {"BadInput", "ModelFileError", "DeviceError", "DeviceLost", "HubUnavailable"}


def test_every_error_of_the_tree_is_told_once() -> None:
    public = {kind for kind in kinds(HerdError) if kind.__module__ == HerdError.__module__}
    assert {kind.__name__ for kind in public.difference(map(type, TOLD))} == WIDER
    assert len({error.http.code for error in TOLD}) == len(TOLD)


def kinds(kind: type[HerdError]) -> set[type[HerdError]]:
    return {kind}.union(*(kinds(one) for one in kind.__subclasses__()))


@pytest.mark.parametrize("error", TOLD, ids=lambda error: type(error).__name__)
def test_what_is_told_is_whole_and_keeps_the_operators_secrets(error: HerdError) -> None:
    problem = Problem.from_error(error)
    assert problem.status == {422: 400}.get(http_status(error), http_status(error))
    assert "secret" not in str(problem.body)
    assert "{e" not in f"{problem.body}{problem.cause}"
    assert "secret" not in str(error) or problem.cause == str(error)


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_of_a_job_keeps_its_code_and_its_words(code: ErrorCode) -> None:
    problem = Problem.from_error(GenerationError(code, "so many {tokens}"))
    assert (problem.code, problem.message, problem.cause) == (code, "so many {tokens}", code)


def test_wrong_fields_are_named_and_logged_by_known_names_only() -> None:
    problem = Problem.from_error(TOLD[1], bad_status=422)
    assert (problem.status, problem.param) == (422, None)
    assert problem.cause == "sampling.n: must be at most 8; ?: unknown field"
    assert Problem.from_error(InvalidJob([FieldError("n", "no"), FieldError("body", "no")])).param == "n"


def test_a_job_of_a_wrong_kind_names_the_model_that_the_request_has_chosen() -> None:
    error = Failure(code=ErrorCode.INVALID_JOB, message="kind: this model writes, and makes no vectors")
    end = End(seq=1, job="a", epoch=1, finish_reason="error", n=0, attempts=0, error=error)
    problem = Problem.from_end(end)
    assert problem.message == "model: this model writes, and makes no vectors"
    assert problem.param == "model"
