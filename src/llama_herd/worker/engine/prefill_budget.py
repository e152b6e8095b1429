"""The budget of prompt tokens follows what steps take: as many as double the time of a step without."""

from collections import deque
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple, Self

#: Times as many prompt tokens are computed in a step that keeps no stream waiting.
ALONE_FACTOR = 32

#: Prompt tokens that take about as long as a step of a small model, by the kind of the device; see
#: docs/decisions/0005.
LEAST_TOKENS = {"cpu": 16, "cuda": 256}

#: As many steps may the prompts of one take beside streams that can all wait.
PATIENT_STEPS = 8

#: How many of the last steps count, and how many of the last differences between two.
LAST_STEPS = 16

#: This part of the budget is a small lot: two lots far apart tell what a token costs, and what any prompt.
SMALL_PART = 4


class Step(NamedTuple):
    """A step's tokens, those of rows that decode among them, and what it took."""

    num_prompt_tokens: int
    num_tokens: int
    seconds: float


class Costs(NamedTuple):
    """What a step with some sequences takes: without prompts, and more with any and for each of their tokens.

    Where the first tokens are free, `prompt_s` is below 0.
    """

    decode_s: float
    prompt_s: float
    token_s: float


class Differences:
    """Between usual steps and others of one kind, each just behind the other: of tokens, and of seconds."""

    def __init__(self) -> None:
        self._found: deque[tuple[int, float]] = deque(maxlen=LAST_STEPS)
        self._alone: Step | None = None  # one that no usual step stood before
        self.num_usual = 0  # usual steps since the last of the kind, or since one was offered

    def __len__(self) -> int:
        return len(self._found)

    def note(self, step: Step, before: Step | None) -> None:
        """A step of the kind; `before`: the usual one just before it, if it was that."""
        self.num_usual = 0
        if before is None:
            self._alone = step
        else:
            self._compare(before, step)

    def note_usual(self, step: Step) -> None:
        self.num_usual += 1
        if self._alone is not None:
            self._compare(step, self._alone)
            self._alone = None

    def _compare(self, usual: Step, other: Step) -> None:
        if usual.num_tokens > other.num_tokens:
            self._found.append((usual.num_tokens - other.num_tokens, usual.seconds - other.seconds))

    def token_s(self) -> float:
        """What a token costs."""
        return max(0.0, middle(seconds / tokens for tokens, seconds in self._found))

    def beyond_s(self, token_s: float) -> float:
        """What usual steps take more than their tokens."""
        return middle(seconds - token_s * tokens for tokens, seconds in self._found)


def middle(values: Iterable[float]) -> float:
    """The mean of all but the lowest and the highest quarter: something else may have held up some steps."""
    found = sorted(values)
    quarter = len(found) // 4
    return fmean(found[quarter : len(found) - quarter])


class PrefillBudget:
    """Prompt tokens of a step.

    They are to take no longer than a step in which all running sequences decode, so that streams go on
    evenly, or PATIENT_STEPS times as long where all can wait. How many that allows depends on the model, the
    device and the number of rows: weights that are read for the rows anyway multiply some prompt tokens for
    next to nothing. So it is learnt from the steps, between `least` and `most`; where these are equal it is
    fixed.

    A step with prompts may take a constant more, however few they are. Were it charged to the tokens, lots
    would be small, and pay it more often. So it is not, and the tokens may take as long as the constant where
    that is longer. No gap in a stream is longer than a step without prompts, the constant, and once more the
    longer of both.

    What rows take grows with their number and with their keys. So a step is compared with the one beside it
    alone: a small lot with a usual one tells what a token costs, a step without prompts what any prompt does.
    Where prompts always wait, some lots are made small, and some steps have none.
    """

    def __init__(self, least: int, most: int | None = None) -> None:
        """Prompt tokens; `most` is None where it is fixed."""
        self.alone = ALONE_FACTOR * least
        self.most = most or least
        self._least = least
        self._offered = self._tried = least  # prompt tokens: the last budget, and the last lot that filled it
        self._steps: deque[Step] = deque(maxlen=LAST_STEPS)
        self._usual: Step | None = None  # the last step, if it was a usual one
        self._without, self._small = Differences(), Differences()
        self._without_s: deque[float] = deque(maxlen=LAST_STEPS)  # what steps without prompts took

    @classmethod
    def from_setting(cls, prefill_tokens: int, device_kind: str) -> Self:
        """By HERD_PREFILL_TOKENS: fixed, or learnt where it is 0."""
        least = prefill_tokens or LEAST_TOKENS[device_kind]
        return cls(least, most=None if prefill_tokens else ALONE_FACTOR * least)

    @property
    def decode_s(self) -> float:
        """What a step without prompts takes; 0 until there was one."""
        return middle(self._without_s or [0.0])

    def note(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """A step with so many prompt tokens beside so many rows that decode took `seconds`."""
        if not num_decoding:
            return
        step = Step(num_prompt_tokens, num_prompt_tokens + num_decoding, seconds)
        self._steps.append(step)
        before, self._usual = self._usual, None
        if not num_prompt_tokens:
            self._without_s.append(seconds)
            self._without.note(step, before)
        elif num_prompt_tokens <= self._offered // 2:
            self._small.note(step, before)
        else:
            self._usual, self._tried = step, num_prompt_tokens
            self._without.note_usual(step)
            self._small.note_usual(step)

    def beside(self, num_running: int, *, can_wait: bool = False) -> int:
        """Prompt tokens of the next step, of so many sequences: those with incomplete prompts are included.

        `can_wait`: all these, so that the step may take longer. No more tokens than twice those of the last
        one: how the time grows beyond is not known yet.
        """
        if self._least == self.most:
            return self.most
        wanted = self._affordable(num_running, PATIENT_STEPS if can_wait else 1)
        self._offered = max(self._least, min(wanted, 2 * self._tried, self.most))
        # Both are due more often at first; what is offered once counts, also if prompts take none of it.
        if self._small.num_usual > len(self._small):
            self._small.num_usual = 0
            return max(1, self._offered // SMALL_PART)
        if self._without.num_usual > 2 * len(self._without):
            self._without.num_usual = 0
            return 0
        return self._offered

    def pays_to_wait(self, num_idle: int, num_running: int) -> bool:
        """Whether prompts are to wait for more of them, beside streams that can all wait.

        A row that waits is idle. So they do until that has cost as much as any step with prompts does.
        num_idle: steps that each of them would have waited, all together.
        """
        costs = self._costs(num_running)
        return costs is not None and num_idle * costs.decode_s < costs.prompt_s * num_running

    def _affordable(self, num_running: int, num_steps: int) -> int:
        """How many prompt tokens take as long as so many steps without, or so many constants."""
        costs = self._costs(num_running)
        if costs is None:
            return self._least
        most_s = num_steps * max(costs.decode_s, costs.prompt_s) + max(0.0, -costs.prompt_s)
        return int(most_s / costs.token_s) if costs.token_s > 0 else self.most

    def _costs(self, num_running: int) -> Costs | None:
        """By the steps so far; None until there was one with prompts beside streams, and one without.

        A row more is taken to cost what a token does.
        """
        if not self._without:
            return None
        token_s = (self._small or self._without).token_s()
        prompt_s = self._without.beyond_s(token_s)
        found = [
            one.seconds - token_s * (one.num_tokens - num_running) - prompt_s * (one.num_prompt_tokens > 0)
            for one in self._steps
        ]
        return Costs(middle(found), prompt_s, token_s)
