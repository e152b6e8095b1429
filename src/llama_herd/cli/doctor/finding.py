"""The result of one check of `herd doctor`."""

from typing import Literal, NamedTuple, Self

from llama_herd.errors import HerdError

State = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """The state of one subject. With a warning the herd may still work; with a failure it will not."""

    subject: str
    state: State
    detail: str
    fix: str = ""

    @classmethod
    def of(cls, error: HerdError, subject: str, state: State = "fail", fix: str = "") -> Self:
        """A finding from an error. `fix` is used if the error names none."""
        detail, _, own_fix = str(error).partition(" Fix: ")
        return cls(subject, state, detail.removesuffix("."), own_fix or fix)
