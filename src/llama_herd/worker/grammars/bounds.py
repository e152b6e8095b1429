"""Bounds and divisors of numbers, narrowed to those that llguidance holds.

It reads bounds as doubles, keeps whole parts in 64 bits, and lets an exclusive bound through where both
bounds have the same whole part. So all become inclusive, and doubles within what was asked.
"""

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from llama_herd.worker.grammars.schema_places import Path, SchemaProblem

#: The largest double that 64 bits with a sign hold.
MOST = 2**63 - 1024
#: From here on llguidance needs a bound at the other side, too.
_LONG = 10**17
#: The number next to an exclusive bound of 0.
NEXT_TO_0 = 1e-15
#: Most that the divisors of a schema may multiply to: llguidance multiplies those that meet, in 32 bits.
_MOST_DIVISOR = 2**32 - 1

_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
BOUNDS = (*_LOWER, *_UPPER)


def narrowed_bounds(schema: Mapping[str, Any], path: Path) -> dict[str, int | float]:
    """What takes the place of a schema's bounds. Raises SchemaProblem if they leave no number."""
    given = [key for key in BOUNDS if key in schema]
    for key in given:
        if not _is_number(schema[key]):
            raise SchemaProblem((*path, key), "must be a number")
    least = _least_whole if schema.get("type") == "integer" else _least_double
    low = max((least(schema[key], key == _LOWER[1]) for key in _LOWER if key in given), default=-math.inf)
    high = -max((least(-schema[key], key == _UPPER[1]) for key in _UPPER if key in given), default=-math.inf)
    if low >= _LONG or MOST < high < math.inf:
        high = min(high, MOST)
    if high <= -_LONG or -math.inf < low < -MOST:
        low = max(low, -MOST)
    if low > high:
        raise SchemaProblem((*path, given[0]), "leaves no number that can be followed")
    bounds = {"minimum": low, "maximum": high}
    return {key: _plain(value) for key, value in bounds.items() if not math.isinf(value)}


def check_divisors(found: Iterable[tuple[Path, object]]) -> None:
    """Raise SchemaProblem if llguidance would hold a `multipleOf` of a schema otherwise than it says."""
    product, exponent, seen = 1, 0, set[Decimal]()
    for path, value in found:
        if not _is_number(value) or not 0 < value < math.inf:  # type: ignore[operator]
            raise SchemaProblem(path, "must be a number above 0")
        divisor = Decimal(repr(value)).normalize()
        digits = max(0, -int(divisor.as_tuple().exponent))
        exponent = max(exponent, digits)
        product *= 1 if divisor in seen else int(divisor.scaleb(digits))
        seen.add(divisor)
        most = product * 10 ** (exponent * len(seen))
        if not _is_read_as_written(value, divisor) or (most > _MOST_DIVISOR and len(seen) > 1):
            raise SchemaProblem(path, "is not supported: it has too many digits")


def _is_read_as_written(value: Any, divisor: Decimal) -> bool:
    """Whether llguidance's way to read a decimal comes to its digits."""
    shifted, digits = float(value), 0
    while shifted != int(shifted):
        shifted, digits = shifted * 10, digits + 1
    return shifted <= _MOST_DIVISOR and Decimal(int(shifted)).scaleb(-digits) == divisor


def _least_whole(bound: int | float, is_exclusive: bool) -> int | float:
    """The least whole number at a lower bound that is a double, too."""
    if math.isinf(bound):
        return bound
    return _at_least(math.floor(bound) + 1 if is_exclusive else math.ceil(bound))


def _least_double(bound: int | float, is_exclusive: bool) -> int | float:
    """The least double at a lower bound; next to 0 one that can be written in few digits."""
    found = _at_least(bound)
    if not is_exclusive or found != bound:
        return found
    return NEXT_TO_0 if bound == 0 else math.nextafter(found, math.inf)


def _at_least(number: int | float) -> float:
    """The least double that is not below a number."""
    try:
        found = float(number)
    except OverflowError:
        return math.copysign(math.inf, number)
    return math.nextafter(found, math.inf) if found < number else found


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
