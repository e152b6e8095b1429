"""What `herd doctor` finds of one subject."""

from typing import Literal, NamedTuple, Self

FindingState = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """The state of one subject. With a warning the herd may still work; with a failure it will not."""

    subject: str
    state: FindingState
    detail: str
    fix: str = ""

    @classmethod
    def told(cls, what: object, subject: str, state: FindingState = "fail", fix: str = "") -> Self:
        """A finding from an error or a complaint. `fix` is used if that names none."""
        detail, _, own_fix = str(what).partition(" Fix: ")
        return cls(subject, state, detail.removesuffix("."), own_fix or fix)
