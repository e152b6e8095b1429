"""OpenAI's objects of batches, and the request that makes one."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationError

from llama_herd.errors import InvalidJob
from llama_herd.tasks.ledger.batch_records import STATES, BatchRecord, BatchRequest, BatchState
from llama_herd.tasks.openai.answer_schema import AnswerModel, ObjectList
from llama_herd.tasks.openai.embeddings import BatchEndpoint
from llama_herd.tasks.protocol.strict_model import StrictModel, at_most
from llama_herd.tasks.protocol.webhook import WebhookSecret, WebhookUrl
from llama_herd.tasks.protocol.wrong_fields import field_errors

#: Bounds of OpenAI's.
MAX_METADATA = 16
MIN_LIFE_S, MAX_LIFE_S = 3600, 2_592_000

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Key = Annotated[str, StringConstraints(max_length=64)]
Value = Annotated[str, StringConstraints(max_length=512)]


class _Asked(StrictModel):
    """What a client asks for."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Read what was asked for. Raises InvalidJob with every wrong field."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidJob(field_errors(error, cls.model_fields)) from None


class ExpiresAfter(_Asked):
    """When a file is deleted."""

    anchor: Literal["created_at"] = Field(description="From when the time counts: when the file is made.")
    seconds: int = Field(ge=MIN_LIFE_S, le=MAX_LIFE_S, description="For how long it is kept.")


class BatchBody(_Asked):
    """The request for a batch."""

    input_file_id: str = Field(max_length=64, description="Id of a file that was uploaded for `batch`.")
    endpoint: BatchEndpoint = Field(description="Where each of its rows would be sent alone.")
    completion_window: str = Field(
        pattern=r"^[1-9][0-9]{0,4}[smhd]$",
        description="How long the batch may take: `24h`, or another number of s, m, h or d. Rows that are "
        "not done by then get a line that says so.",
    )
    metadata: Annotated[dict[Key, Value] | None, at_most(MAX_METADATA)] = Field(
        default=None, description="Names and values of your own, up to 16."
    )
    output_expires_after: ExpiresAfter | None = Field(
        default=None, description="When the files of its answers and errors are deleted."
    )
    webhook: WebhookUrl | None = Field(
        default=None,
        description="Address that is told of its end, in place of the tenant's. Our own field.",
    )
    webhook_secret: WebhookSecret | None = Field(
        default=None,
        repr=False,
        description="What that is signed with, in place of the tenant's secret: `whsec_` and the Base64 of "
        "24 to 64 bytes. It goes with `webhook` only. Our own field.",
    )

    @property
    def window_ms(self) -> int:
        return int(self.completion_window[:-1]) * _UNIT_MS[self.completion_window[-1]]

    def to_request(self, owner: str, life_s: int) -> BatchRequest:
        """The request as its record keeps it. life_s: how long its files are kept by default; 0: for ever."""
        if self.output_expires_after is not None:
            life_s = self.output_expires_after.seconds
        return BatchRequest(
            self.input_file_id,
            self.endpoint,
            self.completion_window,
            self.metadata,
            1000 * life_s or None,
            owner,
            self.webhook or "",
            hashlib.sha256(self.webhook_secret.encode()).hexdigest() if self.webhook_secret else "",
        )


class BatchLineError(AnswerModel):
    """Why a batch did not begin."""

    code: str = Field(description="A word for programs.")
    line: int | None = Field(description="Line of the input file; null if it is none's fault.")
    message: str = Field(description="What is wrong.")
    param: str | None = Field(description="The field that is wrong, if it is one.")


class BatchErrors(AnswerModel):
    """The errors for which a batch did not begin."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    data: tuple[BatchLineError, ...] = Field(description="The first hundred.")


class RequestCounts(AnswerModel):
    """How many rows are in which state."""

    total: int = Field(description="Rows of the input; 0 until it has been checked.")
    completed: int = Field(description="Rows with an answer.")
    failed: int = Field(description="Rows with an error.")


class CachedTokens(AnswerModel):
    """Details of the tokens of prompts."""

    cached_tokens: int = Field(default=0, description="Always 0: each row's answer has its own.")


class ReasoningTokens(AnswerModel):
    """Details of the tokens of answers."""

    reasoning_tokens: int = Field(default=0, description="Always 0: it is not counted by row.")


class BatchUsage(AnswerModel):
    """Tokens of all rows with an answer; 0 until the batch has ended."""

    input_tokens: int = Field(description="Tokens of prompts.")
    input_tokens_details: CachedTokens = Field(default=CachedTokens(), description="Of these.")
    output_tokens: int = Field(description="Tokens of answers.")
    output_tokens_details: ReasoningTokens = Field(default=ReasoningTokens(), description="Of these.")
    total_tokens: int = Field(description="Both together.")


_STATE_TIME = "In unix seconds; null unless it is or was so."


class BatchObject(AnswerModel):
    """A batch."""

    id: str = Field(description="Its id.")
    object: Literal["batch"] = Field(default="batch", description="Always `batch`.")
    endpoint: str = Field(description="Where each of its rows would be sent alone.")
    model: str | None = Field(description="The model of all rows; null if not known, or if there are more.")
    errors: BatchErrors | None = Field(description="Why it did not begin.")
    input_file_id: str = Field(description="Its input.")
    completion_window: str = Field(description="How long it may take.")
    status: BatchState = Field(description="What it is at.")
    output_file_id: str | None = Field(description="The answers; null until it has ended.")
    error_file_id: str | None = Field(description="The rows without one; null if there are none.")
    created_at: int = Field(description="When it was accepted, in unix seconds.")
    in_progress_at: int | None = Field(description=_STATE_TIME)
    expires_at: int = Field(description="When its completion_window is over, in unix seconds.")
    finalizing_at: int | None = Field(description=_STATE_TIME)
    completed_at: int | None = Field(description=_STATE_TIME)
    failed_at: int | None = Field(description=_STATE_TIME)
    expired_at: int | None = Field(description=_STATE_TIME)
    cancelling_at: int | None = Field(description=_STATE_TIME)
    cancelled_at: int | None = Field(description=_STATE_TIME)
    request_counts: RequestCounts = Field(description="Its rows.")
    usage: BatchUsage = Field(description="Its tokens.")
    metadata: dict[str, str] | None = Field(description="As it was given.")
    unserved: tuple[str, ...] = Field(
        default=(), description="Models of its rows that no worker has: these rows wait. A field of ours."
    )

    @classmethod
    def from_record(cls, record: BatchRecord) -> Self:
        request = record.request
        lines = tuple(BatchLineError(**one._asdict()) for one in record.errors)
        return cls(
            id=record.id,
            endpoint=request.endpoint,
            model=record.model or None,
            errors=BatchErrors(data=lines) if lines else None,
            input_file_id=request.input_file_id,
            completion_window=request.window,
            status=record.state,
            output_file_id=record.output_file_id or None,
            error_file_id=record.error_file_id or None,
            created_at=record.created_ms // 1000,
            expires_at=record.expires_ms // 1000,
            request_counts=RequestCounts(
                total=record.num_rows, completed=record.num_done, failed=record.num_failed
            ),
            usage=BatchUsage(
                input_tokens=record.prompt_tokens,
                output_tokens=record.completion_tokens,
                total_tokens=record.prompt_tokens + record.completion_tokens,
            ),
            unserved=record.unserved if record.state == "in_progress" else (),
            metadata=None if request.metadata is None else dict(request.metadata),
            **{
                f"{state}_at": record.times[state] // 1000 if state in record.times else None
                for state in STATES
            },
        )


class BatchList(ObjectList):
    """A page of batches."""

    data: tuple[BatchObject, ...] = Field(description="The batches, the newest first.")
