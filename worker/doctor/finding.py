"""What the doctor says of one thing."""

from typing import Literal, NamedTuple, Self

from llama_herd.errors import HerdError

State = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """How one thing is. A warning may do for what is planned; a failure will not."""

    subject: str
    state: State
    detail: str
    fix: str = ""

    @classmethod
    def of(cls, error: HerdError, subject: str, state: State = "fail", fix: str = "") -> Self:
        """What an error says. `fix` stands in where it names none."""
        detail, _, own_fix = str(error).partition(" Fix: ")
        return cls(subject, state, detail.removesuffix("."), own_fix or fix)
