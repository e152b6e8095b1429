"""The names of rows, which must be unique."""

from array import array

MAX_ID_CHARS = 512

_FIRST_SLOTS = 1 << 10
_BITS = (1 << 64) - 1


def is_custom_id(value: object) -> bool:
    """Whether it can be a row's name: a text without lone surrogates."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


class CustomIds:
    """Which line used a name first.

    It keeps only 64 bits of a name's hash and the line, in a table with linear probing that is at most
    two thirds full: 18 to 36 bytes a name, where a dict would take 150.
    """

    def __init__(self) -> None:
        self._make_table(_FIRST_SLOTS)

    def _make_table(self, num_slots: int) -> None:
        self._num = 0
        self._hashes = array("Q", bytes(8 * num_slots))
        self._lines = array("I", bytes(4 * num_slots))  # 0: the slot is free

    def first_line(self, custom_id: str, line: int) -> int:
        """The earlier line with this name. If there is none, `line`, from 1 on, which now owns the name."""
        if 3 * self._num >= 2 * len(self._lines):
            self._double_table()
        return self._insert(hash(custom_id) & _BITS, line)

    def _insert(self, hashed: int, line: int) -> int:
        hashes, lines = self._hashes, self._lines
        last = len(lines) - 1
        slot = hashed & last
        while lines[slot]:
            if hashes[slot] == hashed:
                return lines[slot]
            slot = (slot + 1) & last
        hashes[slot], lines[slot] = hashed, line
        self._num += 1
        return line

    def _double_table(self) -> None:
        hashes, lines = self._hashes, self._lines
        self._make_table(2 * len(lines))
        for hashed, line in zip(hashes, lines, strict=True):
            if line:
                self._insert(hashed, line)
