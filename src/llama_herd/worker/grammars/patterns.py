"""Patterns of JSON Schema, which are ECMAScript's, as llguidance reads expressions."""

import re
from collections.abc import Mapping
from functools import lru_cache

from llguidance import LLMatcher

from llama_herd.worker.grammars.json_grammar import BYTES

#: White space of Python, Rust and ECMAScript alike; of ECMAScript; of any of them.
_COMMON_SPACE = r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}"
_SPACE = _COMMON_SPACE + r"\u{feff}"
_ANY_SPACE = _SPACE + r"\u{1c}-\u{1f}\u{85}"
_WORD = "0-9A-Za-z_"
#: What the letters behind backslashes stand for.
_EXACT = {"d": "0-9", "w": _WORD, "s": _SPACE}
_COMMON = {"d": "0-9", "w": _WORD, "s": _COMMON_SPACE}
_ANY = {"d": r"\p{Nd}", "w": r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\u{200c}\u{200d}", "s": _ANY_SPACE}

_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_ESCAPE = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u(?P<four>[0-9a-fA-F]{4})|u\{(?P<any>[0-9a-fA-F]{1,6})\}|x(?P<two>[0-9a-fA-F]{2})"
    r"|c(?P<control>[A-Za-z])|(?P<property>[pP]\{[A-Za-z_=]+\})|(?P<kind>[dDwWsS])"
    r"|(?P<plain>[tnvfr]|0(?![0-9])|[^A-Za-z0-9]))",
    re.DOTALL,
)
_COUNT = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})")
_GROUP = re.compile(r"\((?:\?:|\?<[A-Za-z_][A-Za-z0-9_]*>|(?!\?))")


def as_llguidance(pattern: str, *, is_exact: bool = False) -> str:
    """A pattern that matches the same texts.

    Unless it is exact it matches only those that it matches in other languages, too, so that a validator
    in Python has no complaint. Raises ValueError, with what is not supported.
    """
    return _Reader(pattern, (_EXACT, _EXACT) if is_exact else (_COMMON, _ANY)).read()


@lru_cache(maxsize=32)  # a schema of a hundred addresses asks the same for each
def is_within(pattern: str, other: str) -> bool:
    """Whether the texts that one pattern matches as a whole are matched so by the other, too."""
    if pattern == other:
        return True
    try:
        ours, theirs = (as_llguidance(one, is_exact=True) for one in (pattern, other))
    except ValueError:
        return False
    grammar = LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: /{ours}/ & ~/{theirs}/")
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    return not (matcher.is_error() or matcher.is_accepting() or any(matcher.compute_bitmask()[: 256 // 8]))


class _Reader:
    def __init__(self, pattern: str, kinds: tuple[Mapping[str, str], Mapping[str, str]]) -> None:
        self._pattern = pattern
        self._at = 0
        self._narrow, self._wide = kinds

    def read(self) -> str:
        pieces, may_repeat = list[str](), False
        while self._at < len(self._pattern):
            if found := _COUNT.match(self._pattern, self._at):
                if not may_repeat:
                    raise ValueError("is not supported: a count stands behind nothing that it counts")
                pieces.append(found[0])
                self._at = found.end()
                self._at += self._is_at("?")  # lazy: it matches the same texts
                may_repeat = False
            else:
                may_repeat = self._pattern[self._at] not in "^$|("
                pieces.append(self._piece())
        return "".join(pieces)

    def _piece(self) -> str:
        char = self._pattern[self._at]
        if char == "[":
            return self._brackets()
        if char == "(":
            found = _GROUP.match(self._pattern, self._at)
            if found is None:
                raise ValueError("is not supported: (? that begins no group. Fix: no look-around, no flags")
            self._at = found.end()
            return "(?:"
        if char == "\\":
            return f"[{self._part(is_negated=False)[0]}]"
        self._at += 1
        if char in "{}":
            raise ValueError("is not supported: a brace that is no count needs a backslash")
        if char == ".":
            return r"[^\n\r\u{2028}\u{2029}]"
        return char if char in "^$|)" else _literal(char)

    def _brackets(self) -> str:
        self._at += 1
        is_negated = self._is_at("^")
        self._at += is_negated
        parts = list[tuple[str, bool]]()
        while not self._is_at("]"):
            parts.append(self._part(is_negated=is_negated))
        self._at += 1
        if not parts:
            if is_negated:
                return r"[\u{0}-\u{10ffff}]"
            raise ValueError("is not supported: a class that holds nothing")
        return f"[{'^' if is_negated else ''}{''.join(_with_ranges(parts))}]"

    def _part(self, *, is_negated: bool) -> tuple[str, bool]:
        """What comes next in brackets, and whether it is one character."""
        if self._at >= len(self._pattern):
            raise ValueError("is not supported: a class without an end")
        char = self._pattern[self._at]
        if char != "\\":
            self._at += 1
            return (char if char == "-" else _literal(char)), True
        found = _ESCAPE.match(self._pattern, self._at)
        if found is None:
            raise ValueError("is not supported: a backslash and what follows it")
        self._at = found.end()
        if found["kind"]:
            return self._kind(found["kind"], is_negated), False
        if found["property"]:
            return "\\" + found["property"], False
        return _literal(_char(found)), True

    def _kind(self, letter: str, is_negated: bool) -> str:
        """A class like \\d or \\D. Where it is negated once more, what is left out must be wide."""
        ours, other = (self._wide, self._narrow) if is_negated else (self._narrow, self._wide)
        return ours[letter] if letter.islower() else f"[^{other[letter.lower()]}]"

    def _is_at(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)


def _with_ranges(parts: list[tuple[str, bool]]) -> list[str]:
    """The parts of a class: a dash between two characters makes a range, any other is a dash."""
    pieces, at = list[str](), 0
    while at < len(parts):
        is_range = len(parts) > at + 2 and parts[at + 1][0] == "-" and parts[at][1] and parts[at + 2][1]
        ends = (parts[at][0], parts[at + 2][0]) if is_range else (parts[at][0],)
        pieces.append("-".join(_literal("-") if one == "-" else one for one in ends))
        at += 3 if is_range else 1
    return pieces


def _char(found: re.Match[str]) -> str:
    if found["high"]:
        pair = bytes.fromhex(found["high"] + found["low"])
        return pair.decode("utf-16-be")
    if code := found["four"] or found["any"] or found["two"]:
        return chr(min(int(code, 16), 0x110000 - 1))
    if found["control"]:
        return chr(ord(found["control"]) % 32)
    return _CONTROLS.get(found["plain"], found["plain"])


def _literal(char: str) -> str:
    """A character that stands for itself, within brackets and outside."""
    if "\ud800" <= char <= "\udfff":
        raise ValueError("is not supported: half a pair of surrogates")
    return char if char.isascii() and char.isalnum() else f"\\u{{{ord(char):x}}}"
