"""Reads one JSON object as it comes, and says at the first wrong character that it is none."""

import json
import re
from collections.abc import Mapping

#: Arrays and objects within one another.
MAX_DEPTH = 100

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_WHOLE_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSING = {"{": "}", "[": "]"}


class JsonObject:
    """The text of one object, in pieces. Its time is linear in that text, whatever stands there."""

    def __init__(self) -> None:
        self.is_whole = False
        self.is_wrong = False
        self._pieces: list[str] = []
        self._num_read = 0  # characters of the pieces before this one
        self._expects = "value"  # name of the next token's kind
        self._open: list[str] = []  # brackets
        self._in_string = False
        self._escape = 0  # characters that the escape in a string still has, its kind included
        self._scalar: list[str] = []
        self._key = (0, 0)  # of the member that is read: where its name stands
        self._value_start = 0
        self._members: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def read(self, text: str, at: int) -> int:
        """Go on with `text` from `at`; where the object ends in it, or is wrong, or the text ends."""
        start = at
        while at < len(text) and not self.is_whole and not self.is_wrong:
            if self._in_string:
                at = self._read_string(text, at, at - start)
            elif self._scalar:
                at = self._read_scalar(text, at, at - start)
            else:
                at = _end(_SPACE, text, at)
                if at < len(text):
                    at = self._read_token(text, at, at - start)
        self._pieces.append(text[start:at])
        self._num_read += at - start
        return at

    @property
    def text(self) -> str:
        """The text that has been read: of a wrong object, all before the wrong character."""
        return "".join(self._pieces)

    def members(self) -> Mapping[str, str]:
        """The texts of the whole object's values, by name; of those with the same name the last one."""
        text = self.text
        return {json.loads(text[slice(*key)]): text[slice(*value)] for key, value in self._members}

    def _read_token(self, text: str, at: int, offset: int) -> int:
        """The token that begins here, or its beginning."""
        char, expects, position = text[at], self._expects, self._num_read + offset
        if char == '"' and self._open and expects in ("value", "item", "key", "first key"):
            self._in_string = True
            self._begin(position)
        elif char in "{[" and expects in ("value", "item") and (self._open or char == "{"):
            self._begin(position)
            self._open.append(char)
            self.is_wrong = len(self._open) > MAX_DEPTH
            self._expects = "first key" if char == "{" else "item"
        elif expects in ("comma", "first key", "item") and self._open and char == _CLOSING[self._open[-1]]:
            self._open.pop()
            self._end_value(position + 1)
        elif char == "," and expects == "comma":
            self._expects = "key" if self._open[-1] == "{" else "value"
        elif char == ":" and expects == "colon":
            self._expects = "value"
        elif expects in ("value", "item") and self._open and _SCALAR.match(char)[0]:  # type: ignore[index]
            self._begin(position)
            self._scalar = [""]
            return at
        else:
            self.is_wrong = True
        return at if self.is_wrong else at + 1

    def _read_string(self, text: str, at: int, offset: int) -> int:
        if self._escape:
            return self._read_escape(text, at)
        end = _end(_PLAIN, text, at)
        if end == len(text):
            return end
        if text[end] == "\\":
            self._escape = 1
        elif text[end] == '"':
            self._in_string = False
            self._end_string(self._num_read + offset + end + 1 - at)
        else:
            self.is_wrong = True
            return end
        return end + 1

    def _read_escape(self, text: str, at: int) -> int:
        """One character of an escape: its kind, or one of the four digits of \\u."""
        char = text[at]
        if self._escape > 1:
            self.is_wrong = char not in _HEX
            self._escape = 0 if self._escape == 2 else self._escape - 1
        else:
            self.is_wrong = char not in '"\\/bfnrtu'
            self._escape = 5 if char == "u" else 0
        return at if self.is_wrong else at + 1

    def _read_scalar(self, text: str, at: int, offset: int) -> int:
        end = _end(_SCALAR, text, at)
        self._scalar.append(text[at:end])
        if end < len(text):
            self.is_wrong = _WHOLE_SCALAR.fullmatch("".join(self._scalar)) is None
            self._scalar = []
            self._end_value(self._num_read + offset + end - at)
        return end

    def _begin(self, position: int) -> None:
        """A name or a value begins here."""
        if len(self._open) == 1:
            if self._expects in ("key", "first key"):
                self._key = (position, position)
            else:
                self._value_start = position

    def _end_string(self, position: int) -> None:
        if self._expects in ("key", "first key"):
            self._expects = "colon"
            if len(self._open) == 1:
                self._key = (self._key[0], position)
        else:
            self._end_value(position)

    def _end_value(self, position: int) -> None:
        self._expects = "comma"
        self.is_whole = not self._open
        if len(self._open) == 1:
            self._members.append((self._key, (self._value_start, position)))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The end of the characters of a kind; these patterns match anywhere, if only nothing."""
    match = pattern.match(text, at)
    return at if match is None else match.end()
