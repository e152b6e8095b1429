"""Which rows are done: one bit per row."""

from collections.abc import Iterable


class DoneRows:
    """A set of row numbers, small if they are dense."""

    def __init__(self, lines: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        self._num = 0
        for line in lines:
            self.add(line)

    def __len__(self) -> int:
        return self._num

    def __contains__(self, line: int) -> bool:
        byte, bit = divmod(line, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)

    def add(self, line: int) -> None:
        if line in self:
            return
        byte, bit = divmod(line, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 1 - len(self._bits)))
        self._bits[byte] |= 1 << bit
        self._num += 1
