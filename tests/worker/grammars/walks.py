"""Walks through the masks of a form, half drawn and half steered to what its schema must not let through."""

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from random import Random
from typing import Any

import numpy as np

from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sampling.rules import masks_of
from llama_herd.worker.grammars.schema_places import values

#: A walk that takes more tokens counts as not ended.
MOST_TOKENS = 120

_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
}
#: Texts at the edge of formats and classes of characters.
_EDGE_TEXTS = (
    *("2021-02-29", "2020-02-29", "1900-02-29", "0000-01-01", "2021-13-01", "23:59:60Z", "12:00:00+24:00"),
    *("2020-01-01T24:00:00Z", "2020-02-30T00:00:00Z", "1.2.3.256", "01.2.3.4", "::1::", "1:2:3:4:5:6:7::"),
    *("a..b@c", "a@-b", "a@b", "a-", "xn--a", "ab--c", "P1YT", "P1W1D", "http://[::1", "a:%zz", "1.2.3.4"),
    *("\u0085", "\ufeff", "\u2028", "\r", "٣", "²", "é", "😀", "\x1c", "\u200d", "\n", "", "aa", "a\n"),
)
_PIECES = (
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    '"x":',
    '"__proto__":',
    '"":',
    '"\\ud83d"',
    '"\\u0000"',
)


class Walker:
    """Walks forms over one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces = tokenizer.pieces
        self._end = min(tokenizer.eos_ids)

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """The tokens of single bytes."""
        return {piece[0]: number for number, piece in enumerate(self._pieces) if len(piece) == 1}

    @cached_property
    def _closers(self) -> frozenset[int]:
        return frozenset(
            number for number, piece in enumerate(self._pieces) if piece in (b'"', b"}", b"]", b'"}')
        )

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {piece: number for number, piece in enumerate(self._pieces) if piece}

    def walk(self, constraint: Constraint, words: list[str], rng: Random) -> str | None:
        """The text of a walk that ended by itself; None: it did not."""
        matcher, text, num_tokens = constraint.matcher, bytearray(), 0
        while num_tokens < MOST_TOKENS:
            if matcher.is_stopped() or (matcher.is_accepting() and rng.random() < 0.5):
                return text.decode()
            ids = self._cut(rng.choice(words), rng) if words and rng.random() < 0.6 else []
            num_allowed = matcher.validate_tokens(ids) if ids else 0
            chosen = ids[:num_allowed] or [self._drawn(constraint, rng)]
            for token_id in chosen:
                if token_id == self._end:
                    return text.decode()
                constraint.add(token_id)
                text += self._pieces[token_id]
            num_tokens += len(chosen)
        return None

    def _drawn(self, constraint: Constraint, rng: Random) -> int:
        (mask,) = masks_of([constraint])
        constraint.check()
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert len(allowed), "nothing may follow, not even an end"
        closers = self._closers.intersection(allowed.tolist()) if rng.random() < 0.5 else ()
        return int(rng.choice(sorted(closers) or allowed))

    def _cut(self, word: str, rng: Random) -> list[int]:
        """A text as tokens, now in bytes and now in longer pieces."""
        rest, ids, longest = word.encode(), list[int](), rng.choice((1, 2, 8))
        while rest:
            size = next(n for n in range(min(longest, len(rest)), 0, -1) if n == 1 or rest[:n] in self._ids)
            ids.append(self._bytes[rest[0]] if size == 1 else self._ids[rest[:size]])
            rest = rest[size:]
        return ids


def words_of(schema: Any, rng: Random) -> list[str]:
    """Texts to steer by: a schema's names and values in several spellings, its bounds and what is past."""
    words = [*_PIECES, *(f'"{spelled(text, rng)}"' for text in rng.sample(_EDGE_TEXTS, 8))]
    for path, value in values(schema):
        if isinstance(value, str):
            words += [f'"{spelled(value, rng)}"', value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            words += around(value)
            if path[-1:] in (("minLength",), ("maxLength",)):
                words += ['"' + rng.choice("a😀é") * max(0, int(value) + off) + '"' for off in (-1, 0, 1)]
        elif isinstance(value, Mapping):
            words += [f'"{spelled(name, rng)}":' for name in value]
    return words


def spelled(text: str, rng: Random) -> str:
    """A JSON spelling of a text, each character plain or escaped."""
    return "".join(_spelled(char, rng) for char in text)


def _spelled(char: str, rng: Random) -> str:
    way = rng.random()
    if way < 0.15:
        units = char.encode("utf-16-be")
        codes = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
        return "".join(f"\\u{code.upper() if way < 0.05 else code}" for code in codes)
    if way < 0.2 and char in _SHORT:
        return _SHORT[char]
    return json.dumps(char, ensure_ascii=False)[1:-1]


def around(number: int | float) -> Iterator[str]:
    """A bound in several spellings, and what is next to it on both sides."""
    yield from (
        str(number),
        f"{number}.0",
        f"{number}0",
        f"{number}e0",
        f"-{number}",
        f"{number}1",
        "-0",
        "0.0",
    )
    if math.isfinite(float(number)):
        for near in (-1, 1):
            yield str(number + near)
            yield f"{math.nextafter(float(number), math.inf * near)!r}"
        yield str(int(number))
        yield f"{int(number)}.{'0' * 20}1"
        yield f"{float(number):f}"
        yield f"{Decimal(repr(float(number))):f}"  # the fewest digits that name its double, and zeros
