"""Prompt lookup, replayed on texts that were generated without it: how many forwards it would have taken.

It guesses that what followed the last ids when they came before follows them again. One forward then checks
the draft, and keeps as much of it as is drawn anyway. Source: https://arxiv.org/abs/2304.04487
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

SUFFIXES = (3, 2)  # ids that must have come before; the longer match first


@dataclass(frozen=True)
class Text:
    """A prompt and what was generated after it."""

    ids: tuple[int, ...]
    num_prompt: int


@dataclass(frozen=True)
class Pass:
    """One forward of a row: how many drafted tokens it checks, how many of them come true."""

    num_drafted: int
    num_true: int


@dataclass(frozen=True)
class Replay:
    """All forwards that the completions of some texts would take."""

    passes: tuple[Pass, ...]

    @classmethod
    def of(cls, texts: Iterable[Text], max_drafted: int) -> "Replay":
        return cls(tuple(one for text in texts for one in passes(text, max_drafted)))

    @property
    def tokens_per_pass(self) -> float:
        return mean(one.num_true + 1 for one in self.passes)

    @property
    def true_share(self) -> float:
        """Of the drafted tokens."""
        num_drafted = sum(one.num_drafted for one in self.passes)
        return sum(one.num_true for one in self.passes) / max(1, num_drafted)

    @property
    def by_drafted(self) -> Counter[int]:
        """How many passes check so many tokens."""
        return Counter(one.num_drafted for one in self.passes)


def passes(text: Text, max_drafted: int) -> Iterable[Pass]:
    """The forwards of one completion; its first token comes with the prompt."""
    position = text.num_prompt + 1
    while position < len(text.ids):
        most = min(max_drafted, len(text.ids) - position - 1)
        draft = lookup(text.ids[:position], most)
        num_true = num_common(draft, text.ids[position:])
        yield Pass(len(draft), num_true)
        position += num_true + 1


def lookup(ids: Sequence[int], most: int) -> Sequence[int]:
    """What followed the last ids when they last came before, at most so many; nothing when they are new."""
    for length in SUFFIXES:
        suffix = ids[-length:]
        for start in range(len(ids) - length - 1, -1, -1):
            if ids[start : start + length] == suffix:
                return ids[start + length : start + length + most]
    return ()


def num_common(draft: Sequence[int], ids: Sequence[int]) -> int:
    """How many tokens both begin with."""
    num_same = 0
    for ours, theirs in zip(draft, ids, strict=False):
        if ours != theirs:
            break
        num_same += 1
    return num_same
