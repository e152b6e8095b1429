"""What the methods of the clients are given: a wrong argument is named before anything is sent."""

import re
from math import inf, nan
from numbers import Integral, Real

from llama_herd.errors import BadInput
from llama_herd.tasks.settings import MODEL_PATTERN, shortened

#: What is wrong with what is none.
TEXT = "a string of characters that UTF-8 can encode"
MODEL = "1 to 128 letters, digits, dots, underscores or dashes"
#: Scripts in Redis count exactly so far.
MAX_COUNT = 1 << 53
#: The number of an event, or its cursor as the event itself says it: see `cursor` of events.
_CURSOR = re.compile(r"[0-9]{1,15}|[1-9][0-9]{0,14}-[0-9a-f]{8}")


def checked_count(
    name: str, count: int, lowest: int = 0, greatest: int = MAX_COUNT, *, unit: str = ""
) -> int:
    """`count`, as a plain int, if it is a whole number within bounds. Raises BadInput."""
    if not isinstance(count, Integral) or isinstance(count, bool) or not lowest <= count <= greatest:
        raise BadInput(f"{name}: must be {lowest} to {greatest}{unit}, got {shortened(count)}")
    return int(count)


def checked_after(after: int | str) -> tuple[int, str | None]:
    """The number of the event after which a reader goes on, and its cursor if `after` is one.

    Raises BadInput.
    """
    if not isinstance(after, str):
        return checked_count("after", after), None
    if not _CURSOR.fullmatch(after):
        raise BadInput(f"after: must be the number of an event, or its cursor, got {shortened(after)}")
    number, mark, _ = after.partition("-")
    return int(number), after if mark else None


def checked_seconds(
    name: str, seconds: float | None, lowest: float = -inf, greatest: float = inf, *, note: str = ""
) -> float | None:
    """`seconds`, as a plain float, if they are a number within bounds; None stays. Raises BadInput."""
    if seconds is None:
        return None
    try:
        found = float(seconds) if isinstance(seconds, Real) and not isinstance(seconds, bool) else nan
    except OverflowError:
        found = nan
    if not lowest <= found <= greatest:
        bounds = "a number of seconds" if greatest == inf else f"{lowest:g} to {greatest} seconds{note}"
        raise BadInput(f"{name}: must be {bounds}, got {shortened(seconds)}")
    return found


def is_text(given: object) -> bool:
    """Whether this is a string, and of characters that UTF-8 can encode."""
    return isinstance(given, str) and given.encode(errors="replace").decode() == given


def is_model(given: object) -> bool:
    """Whether this can be the name of a model."""
    return isinstance(given, str) and re.fullmatch(MODEL_PATTERN, given) is not None


def checked_text(name: str, given: str) -> str:
    """`given` if it is a text. Raises BadInput."""
    if not is_text(given):
        raise BadInput(f"{name}: must be {TEXT}")
    return given
