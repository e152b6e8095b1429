"""Names that a mistyped one may have been meant to be."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice

#: Longer names are not compared, and no more names than so many: it takes time by the square of the length.
MAX_NAME_CHARS = 64
MAX_KNOWN = 64

#: How much of two names must be the same, from 0 to 1. At less, other services' fields look like ours.
LIKENESS = 0.75


def close_names(name: str, known: Iterable[str], *, most: int = 1, likeness: float = LIKENESS) -> list[str]:
    """The known names that are most like `name`, at most so many; none if nothing is like it."""
    return list(_close_names(name, tuple(known), most, likeness)) if len(name) <= MAX_NAME_CHARS else []


def close_models(name: str, models: Iterable[str]) -> list[str]:
    """The models that `name` may stand for, up to three: sizes and versions make their names long."""
    return close_names(name, models, most=3, likeness=0.6)


def did_you_mean(names: Sequence[str]) -> str:
    """The question for these names, to follow a sentence without its full stop; empty if there are none."""
    return f". Did you mean {' or '.join(names)}?" if names else ""


@lru_cache(maxsize=256)  # whoever submits a thousand jobs makes a mistake a thousand times
def _close_names(name: str, known: tuple[str, ...], most: int, likeness: float) -> tuple[str, ...]:
    short = (one for one in known if len(one) <= MAX_NAME_CHARS)
    named = {_normalized(one): one for one in islice(short, MAX_KNOWN)}
    return tuple(named[one] for one in get_close_matches(_normalized(name), named, most, likeness))


def _normalized(name: str) -> str:
    return name.lower().replace("-", "_")
