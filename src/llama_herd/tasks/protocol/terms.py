"""The terms of a job of any kind: whose it is, when it runs, how long it is kept, who hears of its end."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.priority import MAX_PRIORITY, MIN_PRIORITY
from llama_herd.tasks.protocol.strict_model import StrictModel, at_most
from llama_herd.tasks.protocol.webhook import WebhookSecret, WebhookUrl
from llama_herd.tasks.settings import MAX_TTL_S, MODEL_PATTERN, TENANT_PATTERN, Settings

MAX_NOTES = 16
#: Most retries of a job, and the longest wait before one.
MAX_RETRIES, MAX_BACKOFF_S = 20, 3600.0
YEAR_MS = 31_536_000_000
#: A year: what is to be kept for longer belongs into a database.
MAX_KEEP_S = 31_536_000


class Terms(StrictModel):
    """Whose a job is, when it runs, and how long it is kept. Times are unix milliseconds."""

    model: str | None = Field(
        default=None,
        pattern=MODEL_PATTERN,
        description="Absent: the model of the queue.",
    )
    tenant: str = Field(
        default="default",
        pattern=TENANT_PATTERN,
        description="Whose job it is: that of the process that submits it.",
    )
    priority: int = Field(
        default=0,
        ge=MIN_PRIORITY,
        le=MAX_PRIORITY,
        description="Higher goes first. Above 0: before the jobs that wait at 0. Below 0: after them.",
    )
    deadline_ms: int | None = Field(
        default=None, ge=1, lt=2**53, description="The job ends with `deadline` at this time."
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TTL_S,
        description="The job ends with `deadline` this long after it was accepted, or after `not_before`.",
    )
    not_before: int | None = Field(
        default=None,
        ge=1,
        lt=2**53,
        description="The job is accepted now, but does not run before this time.",
    )
    keep_s: int | None = Field(
        default=None,
        ge=1,
        le=MAX_KEEP_S,
        description="How long the job, its events and its result are kept after its end. Absent: for "
        "HERD_STREAM_TTL_S, and the result for HERD_RESULT_TTL_S. A failed job is kept for "
        "HERD_FAILED_TTL_S at least.",
    )
    retries: int | None = Field(
        default=None,
        ge=0,
        le=MAX_RETRIES,
        description="How often the job is put back and tried again after an error that is `retriable`. It "
        "goes on with the tokens that it has. Absent: 0.",
    )
    retry_backoff_s: float | None = Field(
        default=None,
        ge=0,
        le=MAX_BACKOFF_S,
        description="How long it waits before the first retry; before each further one twice as long, up to "
        "an hour. Up to half of that is left out by chance. Absent: 1.",
    )
    flush_ms: int | None = Field(
        default=None,
        ge=0,
        le=60_000,
        description="Tokens are collected for about this long, then sent in one event; below 500 the first "
        "token is sent at once. 0: an event for each step, but one for all steps that end while Redis takes "
        "the last event. Absent: the worker's HERD_FLUSH_MS.",
    )

    @field_validator("timeout_s")
    @classmethod
    def _check_one_time_limit(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("deadline_ms") is not None:
            raise ValueError("cannot be combined with deadline_ms: give one of them")
        return value

    @field_validator("not_before")
    @classmethod
    def _check_not_before(cls, value: int | None, info: ValidationInfo) -> int | None:
        deadline_ms = info.data.get("deadline_ms")
        if value is not None and deadline_ms is not None and value >= deadline_ms:
            raise ValueError(f"must be before deadline_ms, {deadline_ms}, got {value}")
        return value

    @field_validator("tenant")
    @classmethod
    def _check_tenant(cls, value: str, info: ValidationInfo) -> str:
        limits: Settings | None = info.context
        if limits is not None and value != limits.tenant:
            raise ValueError(f"must be the tenant of this process, {limits.tenant}")
        return value

    def check_deadline(self) -> None:
        """Raise InvalidJob if `deadline_ms` is in 1970: then a span was meant, or seconds."""
        if self.deadline_ms is not None and self.deadline_ms < YEAR_MS:
            message = (
                f"is a time in 1970, got {self.deadline_ms}: it counts milliseconds since then. "
                "Fix: timeout_s for a span from now, in seconds"
            )
            raise InvalidJob([FieldError("deadline_ms", message)])

    def ends_by(self, due_ms: int) -> int | None:
        """The time by which the job must end; None: no limit. `due_ms`: when it could first run."""
        return self.deadline_ms if self.timeout_s is None else due_ms + self.timeout_ms

    @property
    def timeout_ms(self) -> int:
        return math.ceil(1000 * (self.timeout_s or 0))

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, by which an equal job can be made."""
        return self.model_dump(exclude_unset=True)

    def to_json(self) -> str:
        """The job as its record holds it, without its secret. Equal jobs give equal texts."""
        return self.model_dump_json(exclude_none=True, exclude={"webhook_secret"})


class Notices(StrictModel):
    """What goes with a job to whoever looks it up or hears of its end."""

    metadata: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
        at_most(MAX_NOTES),
    ] = Field(
        default={},
        max_length=MAX_NOTES,
        description="The client's own notes, kept with the job; jobs that have ended are found by them.",
    )
    webhook: WebhookUrl | None = Field(
        default=None,
        description="The address that is told of the job's end, in place of the tenant's own. It needs TLS, "
        "and a host that the tenant allows.",
    )
    webhook_secret: WebhookSecret | None = Field(
        default=None,
        repr=False,
        description="What the webhook to this address is signed with, in place of the tenant's secret: "
        "`whsec_` and the Base64 of 24 to 64 bytes. It goes with `webhook` only.",
    )

    @field_validator("metadata")
    @classmethod
    def _sort_metadata(cls, value: dict[str, str]) -> dict[str, str]:
        return dict(sorted(value.items()))


def fields_of(data: Terms | Mapping[str, Any] | str | bytes) -> Mapping[str, Any]:
    """The fields of a job that is given as such, by its fields, or as JSON. Raises InvalidJob."""
    if isinstance(data, Terms):
        return data.given
    fields: Any = data
    if isinstance(data, str | bytes):
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = None
    if not isinstance(fields, Mapping):
        raise InvalidJob([FieldError("job", "must be a JSON object")])
    return fields
