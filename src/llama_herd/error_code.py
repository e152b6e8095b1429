"""Error codes: they tell a program why a job has no complete output."""

from enum import StrEnum
from typing import Self

#: The status over HTTP of a code whose job is at fault, and of those that say only whether the same job may
#: succeed later.
_BAD, _RETRIABLE, _FINAL = 422, 503, 500


class ErrorCode(StrEnum):
    """A code, what it means, and the status over HTTP, which tells whether the same job may succeed later."""

    INVALID_JOB = "invalid_job", "the job, or the message that brought it, cannot be accepted", _BAD
    INVALID_LINE = "invalid_line", "only of a batch's row: its line is not a valid request", _BAD
    PROMPT_TOO_LONG = (
        "prompt_too_long",
        "the model's context or its KV cache is too small for prompt and output",
        _BAD,
    )
    NO_CHAT_TEMPLATE = "no_chat_template", "the job has messages, but the model has no chat template", _BAD
    TEMPLATE_ERROR = "template_error", "the model's chat template rejects the messages, or fails", _BAD
    TOKENIZER_ERROR = "tokenizer_error", "the model's tokenizer fails on the prompt", _BAD
    GRAMMAR_TOO_COMPLEX = (
        "grammar_too_complex",
        "the job's schema or grammar takes more work for a token than is allowed",
        _BAD,
    )
    GRAMMAR_DEAD_END = (
        "grammar_dead_end",
        "the job's schema or grammar lets nothing follow the text so far, not even an end",
        _BAD,
    )
    GRAMMAR_MISMATCH = (
        "grammar_mismatch",
        "the tokens so far do not follow the job's grammar as this worker reads it, so it cannot continue",
        _FINAL,
    )
    OTHER_VOCABULARY = (
        "other_vocabulary",
        "the tokens so far stand for another text in this worker's model, or the vectors so far are of "
        "another width, so it cannot continue",
        _FINAL,
    )
    PREPARATION_ERROR = "preparation_error", "the worker failed while it prepared the job", _FINAL
    MODEL_ERROR = "model_error", "the worker failed while it computed the job", _RETRIABLE
    OUT_OF_MEMORY = "out_of_memory", "the device lacked memory for the job's next tokens", _RETRIABLE
    NUMERIC_ERROR = "numeric_error", "the model's logits contained NaN or infinity", _FINAL
    POISONED = "poisoned", "too many workers died while they prepared or ran the job", _FINAL
    UNSERVED = (
        "unserved",
        "no worker has ever served the job's model, and `HERD_UNSERVED_TIMEOUT_S` is over",
        404,
    )
    CANCELLED = "cancelled", "only of a batch's row: its job was cancelled, or was never submitted", 409
    DEADLINE = "deadline", "only of a batch's row: its job was not finished by its deadline", 504
    BATCH_CANCELLED = (
        "batch_cancelled",
        "only of a batch's row: the batch was cancelled before it was done",
        409,
    )
    BATCH_EXPIRED = (
        "batch_expired",
        "only of a batch's row: the batch's `completion_window` was over before it was done",
        504,
    )
    NOT_RECORDED = "not_recorded", "Redis does not accept an event or the record of the job", _FINAL
    UNREADABLE = "unreadable", "the job's data in Redis is damaged, or was not written by llama-herd", _FINAL
    FORGOTTEN = "forgotten", "the job is over, and Redis no longer has its events", 410
    REFUSED = "refused", "Celery could not store the result or send a link", _FINAL
    WRONG_POOL = "wrong_pool", "no engine has met the message, or a task has called the job in place", _FINAL

    meaning: str
    http_status: int

    def __new__(cls, code: str, meaning: str, http_status: int) -> Self:
        self = str.__new__(cls, code)
        self._value_ = code
        self.meaning = meaning
        self.http_status = http_status
        return self

    @property
    def retriable(self) -> bool:
        """Whether the same job may succeed later."""
        return self.http_status == _RETRIABLE

    @property
    def is_bad_input(self) -> bool:
        """Whether the job itself is at fault, so that it fails the same way on any worker."""
        return self.http_status == _BAD


_BY_NAME = {str(code): code for code in ErrorCode}


def known_code(code: str) -> ErrorCode | None:
    """The code of this name; None if unknown. Codes of a newer version count as not retriable."""
    return _BY_NAME.get(code)


def is_retriable(code: str) -> bool:
    """Whether a job that ended with this code may succeed later."""
    known = known_code(code)
    return known is not None and known.retriable
