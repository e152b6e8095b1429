"""Bounds and divisors of numbers, narrowed to those that llguidance holds.

It takes a number with many digits for its neighbour, keeps whole parts in 64 bits, and lets an exclusive
bound through where both bounds have the same whole part. Bounds of numbers that may have a fraction it writes
with the fewest digits that name their double, and zeros: behind 2^53 this may be more than the double. So all
become inclusive, and numbers of few digits within what was asked, in their double's digits and in their own.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from functools import partial
from typing import Any

from llama_herd.worker.grammars.schema_places import Path, SchemaProblem

#: The largest double that 64 bits with a sign hold.
MOST = 2**63 - 1024
#: From here on llguidance needs a bound at the other side, too.
_LONG = 10**17
#: From here on not every whole number is a double.
_GAPS = 2**53
#: Digits of a number that is read as it was written, and the place of the last one behind the point.
MOST_DIGITS, LAST_PLACE = 15, 20
#: The number next to an exclusive bound of 0.
NEXT_TO_0 = Decimal("1e-15")
#: Most that the divisors of a schema may multiply to: llguidance multiplies those that meet, in 32 bits.
_MOST_DIVISOR = 2**32 - 1
#: Most that the digits of one may come to: each remainder is a state, and a million take a second to build.
_MOST_REMAINDERS = 1_000_000

_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
BOUNDS = (*_LOWER, *_UPPER)


def narrowed_bounds(schema: Mapping[str, Any], path: Path) -> dict[str, int | float]:
    """What takes the place of a schema's bounds. Raises SchemaProblem if they leave no number."""
    schema = _with_numbers(schema)
    given = [key for key in BOUNDS if key in schema]
    for key in given:
        if not _is_number(schema[key]):
            raise SchemaProblem((*path, key), "must be a number")
    least = partial(_least, is_whole=schema.get("type") == "integer")
    low = max((least(schema[key], key == _LOWER[1]) for key in _LOWER if key in given), default=-math.inf)
    high = -max((least(-schema[key], key == _UPPER[1]) for key in _UPPER if key in given), default=-math.inf)
    most = 10 ** max(0, MOST_DIGITS - _num_places(schema["multipleOf"])) if "multipleOf" in schema else MOST
    if most < MOST or low >= _LONG or MOST < high < math.inf:
        high = min(high, -least(-most, False))
    if most < MOST or high <= -_LONG or -math.inf < low < -MOST:
        low = max(low, least(-most, False))
    if low > high:
        raise SchemaProblem((*path, *given[:1]), "leaves no number that can be followed")
    bounds = {"minimum": low, "maximum": high}
    finite = {key: value for key, value in bounds.items() if not math.isinf(value)}
    return {key: int(value) if value == int(value) else value for key, value in finite.items()}


def _with_numbers(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose exclusive bounds are numbers, also if they say of others whether they are exclusive.

    So they do in draft 4 and in OpenAPI 3.0.
    """
    found = dict(schema)
    for bound, exclusive in (_LOWER, _UPPER):
        if found.get(exclusive) is False:
            del found[exclusive]
        elif found.get(exclusive) is True and bound in found:
            found[exclusive] = found[bound]
    return found


def check_divisors(found: Iterable[tuple[Path, object]]) -> None:
    """Raise SchemaProblem if llguidance would hold a `multipleOf` of a schema otherwise than it says."""
    product, places, seen = 1, 0, set[Decimal]()
    for path, value in found:
        if not _is_number(value) or not 0 < value < math.inf:  # type: ignore[operator]
            raise SchemaProblem(path, "must be a number above 0")
        divisor = Decimal(repr(value)).normalize()
        places = max(places, _num_places(value))
        num_remainders = int(divisor.scaleb(_num_places(value)))
        if num_remainders > _MOST_REMAINDERS:
            bound = f"its digits may come to {_MOST_REMAINDERS:,} at most"
            raise SchemaProblem(path, f"is not supported: {bound}. Fix: a smaller one, or leave it out")
        product *= 1 if divisor in seen else num_remainders
        seen.add(divisor)
        most = product * 10 ** (places * len(seen))
        if not _is_read_as_written(value, divisor) or (most > _MOST_DIVISOR and len(seen) > 1):
            raise SchemaProblem(path, "is not supported: it has too many digits")


def is_held(number: int | float) -> bool:
    """Whether llguidance holds a constant to its digits."""
    if isinstance(number, int):
        return abs(number) <= MOST and int(float(number)) == number
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    is_short = len(digits) <= MOST_DIGITS and -LAST_PLACE <= int(exponent) <= LAST_PLACE - MOST_DIGITS
    return is_short and (abs(number) < _GAPS or _is_its_digits(number))


def _num_places(number: Any) -> int:
    """The digits behind the point."""
    return max(0, -int(Decimal(repr(number)).normalize().as_tuple().exponent))


def _is_read_as_written(value: Any, divisor: Decimal) -> bool:
    """Whether llguidance's way to read a divisor comes to its digits."""
    if value > _MOST_DIVISOR:
        return False
    shifted, places = float(value), 0
    while shifted != int(shifted):
        shifted, places = shifted * 10, places + 1
    return shifted <= _MOST_DIVISOR and Decimal(int(shifted)).scaleb(-places) == divisor


def _least(bound: int | float, is_exclusive: bool, *, is_whole: bool) -> float:
    """The least number that llguidance holds at a lower bound."""
    if abs(bound) > sys.float_info.max:
        return math.inf if bound > 0 else -math.inf
    given = _given(bound)
    if is_whole:
        return _least_double(math.floor(given) + 1 if is_exclusive else math.ceil(given))
    if given == int(given):
        least = _least_double(int(given))
        if not is_exclusive and _is_its_digits(least):
            return least
        given = Decimal(least)
    last = max(given.adjusted() - MOST_DIGITS + 1, -LAST_PLACE)  # of few digits
    step = Decimal(1).scaleb(last) if given else NEXT_TO_0
    found = given.quantize(step, ROUND_CEILING, context=Context(prec=1000))
    return float(found + step if is_exclusive and found == given else found)


def _given(bound: int | float) -> Decimal:
    """A lower bound; where its digits name one number and its double is another one, the greater."""
    if isinstance(bound, int):
        return Decimal(bound)
    digits = Decimal(repr(bound))
    return digits if abs(bound) < _GAPS else max(digits, Decimal(bound))


def _least_double(number: int) -> float:
    """The least double that is not below a whole number."""
    found = float(number)
    return math.nextafter(found, math.inf) if found < number else found


def _is_its_digits(number: float) -> bool:
    """Whether the fewest digits that name a double are all that it has."""
    return Decimal(repr(number)) == Decimal(number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # not NaN
