"""Which rows are done: one bit per row."""

from collections.abc import Iterable


class DoneRows:
    """The numbers of rows that have an answer or have failed: a set that is small if they are dense."""

    def __init__(self, lines: Iterable[int] = ()) -> None:
        self.num_failed = 0
        self._bits = bytearray()
        self._num = 0
        for line in lines:
            self.add(line)

    def __len__(self) -> int:
        return self._num

    def __contains__(self, line: int) -> bool:
        byte, bit = divmod(line, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)

    @property
    def num_answered(self) -> int:
        return self._num - self.num_failed

    def add(self, line: int, *, has_failed: bool = False) -> None:
        if line in self:
            return
        self.num_failed += has_failed
        byte, bit = divmod(line, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 1 - len(self._bits)))
        self._bits[byte] |= 1 << bit
        self._num += 1
