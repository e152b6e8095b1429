"""Marks in a text that comes in pieces."""

import re
from collections.abc import Collection


class MarkFinder:
    """Finds the first of some texts, and what may become one."""

    def __init__(self, texts: Collection[str]) -> None:
        self._any = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._heads = frozenset(text[:length] for text in texts for length in range(1, len(text)))
        self._longest = max(map(len, self._heads), default=0)

    def find(self, text: str, at: int) -> tuple[int, int] | None:
        """Where the first mark from `at` on begins and ends."""
        found = self._any.search(text, at)
        return None if found is None else found.span()

    def begun(self, text: str, at: int) -> int:
        """Where the end of a text begins that may become a mark; the length of the text if there is none."""
        for start in range(max(at, len(text) - self._longest), len(text)):
            if text[start] in self._heads and text[start:] in self._heads:
                return start
        return len(text)
