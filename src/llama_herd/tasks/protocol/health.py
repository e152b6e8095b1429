"""Health: whether a process is alive, and whether a job would be run, as gateways and workers answer it."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field


class Health(BaseModel):
    """Whether this process is alive, or a job would be run."""

    model_config = ConfigDict(frozen=True)

    status: Literal["live", "not live", "ready", "not ready"] = Field(
        description="What was asked for, or that it is not. A gateway that answers is live."
    )
    reason: str | None = Field(default=None, description="Why it is not.")

    @classmethod
    def live(cls, trouble: str = "") -> Self:
        """Whether the process is alive. trouble: why a new start would help; empty: it would not."""
        return cls(status="not live", reason=trouble) if trouble else cls(status="live")

    @classmethod
    def ready(cls, trouble: str = "") -> Self:
        """Whether a job would be run. trouble: why not; empty: it would."""
        return cls(status="not ready", reason=trouble) if trouble else cls(status="ready")

    @property
    def http_status(self) -> int:
        return 200 if self.reason is None else 503
