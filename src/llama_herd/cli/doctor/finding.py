"""The result of one check of `herd doctor`."""

from typing import Literal, NamedTuple, Self

from llama_herd.errors import HerdError

FindingState = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """The state of one subject. With a warning the herd may still work; with a failure it will not."""

    subject: str
    state: FindingState
    detail: str
    fix: str = ""

    @classmethod
    def from_error(cls, error: HerdError, subject: str, state: FindingState = "fail", fix: str = "") -> Self:
        """A finding from an error. `fix` is used if the error names none."""
        detail, _, own_fix = str(error).partition(" Fix: ")
        return cls(subject, state, detail.removesuffix("."), own_fix or fix)
