"""Closing: what is closed at the end of a `with` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Opened by being made; `with` closes it."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
