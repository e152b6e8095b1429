"""The budget of prompt tokens follows what steps take: as many as double the time of a step without."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: Times as many prompt tokens are computed in a step that keeps no stream waiting.
ALONE_FACTOR = 32

#: Prompt tokens that take about as long as a step of a small model, by the kind of the device; see
#: docs/decisions/0005.
LEAST_TOKENS = {"cpu": 16, "cuda": 256}

#: As many steps may the prompts of one take beside streams that can all wait.
PATIENT_STEPS = 8

#: How many steps of a kind count, the last ones.
LAST_STEPS = 16

#: This part of the budget is a small lot: two lots far apart tell what a token costs, and what any prompt.
SMALL_PART = 4


class Mean(NamedTuple):
    """Tokens and seconds of a step."""

    tokens: float
    seconds: float


class Costs(NamedTuple):
    """What a step with some sequences takes: without prompts, and more with any and for each of their tokens.

    Where the first tokens are free, `prompt_s` is below 0.
    """

    decode_s: float
    prompt_s: float
    token_s: float


@dataclass(frozen=True)
class ForwardCosts:
    """What captured forwards take, measured before the first job.

    Fewer prompt tokens than a forward has room for take as long; more take several forwards.
    """

    row_s: float  # of one row
    prompts_s: Mapping[int, float]  # more, by the prompt tokens that there is room for

    @property
    def milliseconds(self) -> dict[int, float]:
        """For the log: by the prompt tokens, without rows; 0 is one row."""
        return {
            size: round(1_000 * seconds, 2) for size, seconds in {0: self.row_s, **self.prompts_s}.items()
        }

    @property
    def most(self) -> int:
        return max(self.prompts_s)

    @property
    def token_s(self) -> float:
        return self.prompts_s[self.most] / self.most

    @property
    def constant_s(self) -> float:
        """What any prompt takes, however short."""
        least = min(self.prompts_s)
        return max(0.0, self.prompts_s[least] - least * self.token_s)

    def of(self, num_tokens: int) -> float:
        """What so many prompt tokens take."""
        num_full, rest = divmod(num_tokens, self.most)
        rest_s = min(room_s for room, room_s in self.prompts_s.items() if room >= rest) if rest else 0.0
        return num_full * self.prompts_s[self.most] + rest_s

    def fitting(self, seconds: float) -> int:
        """The most prompt tokens that take no longer and leave no room; 0 if there are none."""
        fitting = (room for room, room_s in self.prompts_s.items() if room_s <= seconds)
        return int(seconds / self.prompts_s[self.most]) * self.most or max(fitting, default=0)


class LastSteps:
    """The last steps of a kind. The slowest does not count: something else may have held it up."""

    def __init__(self) -> None:
        self._steps: deque[Mean] = deque(maxlen=LAST_STEPS)
        self.mean: Mean | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def note(self, num_tokens: int, seconds: float) -> None:
        self._steps.append(Mean(num_tokens, seconds))
        counted = sorted(self._steps, key=lambda one: one.seconds)[:-1] or self._steps
        tokens, times = zip(*counted, strict=True)
        self.mean = Mean(sum(tokens) / len(counted), sum(times) / len(counted))


class PrefillBudget:
    """Prompt tokens of a step.

    They are to take no longer than a step in which all running sequences decode, so that streams go on
    evenly, or PATIENT_STEPS times as long where all can wait. How many that allows depends on the model, the
    device and the number of rows: weights that are read for the rows anyway multiply some prompt tokens for
    next to nothing. This one is fixed; the others are between a least and a most.
    """

    def __init__(self, num_tokens: int) -> None:
        self.alone = ALONE_FACTOR * num_tokens
        self.most = self._least = num_tokens
        self._without = LastSteps()

    @staticmethod
    def from_setting(
        prefill_tokens: int, device_kind: str, costs: ForwardCosts | None = None
    ) -> "PrefillBudget":
        """By HERD_PREFILL_TOKENS: fixed; where it is 0 by what forwards take, or learnt if nobody knows."""
        if prefill_tokens:
            return PrefillBudget(prefill_tokens)
        least = LEAST_TOKENS[device_kind]
        if costs is None:
            return LearntBudget(least, ALONE_FACTOR * least)
        return MeasuredBudget(least, ALONE_FACTOR * least, costs)

    @property
    def decode_s(self) -> float:
        """What a step without prompts takes; 0 until that is known."""
        return self._without.mean.seconds if self._without.mean else 0.0

    def note(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        """A step with so many prompt tokens beside so many rows that decode took `seconds`."""
        if num_decoding and not num_prompt_tokens:
            self._without.note(num_decoding, seconds)

    def beside(self, num_running: int, *, can_wait: bool = False) -> int:
        """Prompt tokens of the next step, of so many sequences: those with incomplete prompts are included.

        `can_wait`: all these, so that the step may take longer.
        """
        return self.most

    def pays_to_wait(self, num_idle: int, num_running: int) -> bool:
        """Whether prompts are to wait for more of them, beside streams that can all wait.

        A row that waits is idle. So they do until that has cost as much as any step with prompts does.
        num_idle: steps that each of them would have waited, all together.
        """
        costs = self._costs(num_running)
        return costs is not None and num_idle * costs.decode_s < costs.prompt_s * num_running

    def _costs(self, num_running: int) -> Costs | None:
        """None as long as they are not known."""
        return None


class MeasuredBudget(PrefillBudget):
    """Of captured forwards: what prompts take was measured before the first job.

    So each step tells what it would have taken without its prompts, and the rows of the last steps what one
    takes beyond the first. No gap in a stream is longer than two steps in which all running sequences decode,
    but for the least budget, and for what prompts of very many tokens take to attend to all of them.
    """

    def __init__(self, least: int, most: int, forwards: ForwardCosts) -> None:
        super().__init__(least)
        self.most = most
        self._forwards = forwards

    def note(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        if num_decoding:
            self._without.note(num_decoding, seconds - self._forwards.of(num_prompt_tokens))

    def beside(self, num_running: int, *, can_wait: bool = False) -> int:
        costs = self._costs(num_running)
        if costs is None:
            return self._least
        fitting = self._forwards.fitting((PATIENT_STEPS if can_wait else 1) * costs.decode_s)
        return max(self._least, min(fitting, self.most))

    def _costs(self, num_running: int) -> Costs | None:
        mean, forwards = self._without.mean, self._forwards
        if mean is None:
            return None
        rows_s = max(0.0, mean.seconds - forwards.row_s)
        decode_s = forwards.row_s + rows_s * num_running / mean.tokens
        return Costs(decode_s, forwards.constant_s, forwards.token_s)


class LearntBudget(PrefillBudget):
    """Learnt from the steps.

    A step with prompts takes a constant more, however few they are: much on a device that computes prompts
    kernel by kernel. Were it charged to the tokens, lots would be small, and pay it more often. So it is not,
    and the tokens may take as long as the constant where that is longer. Small lots beside usual ones tell
    it; where prompts bring none, one in seventeen is made small. No gap in a stream is longer than a step
    without prompts, the constant, and once more the longer of both.

    A prompt token and a row that decodes are taken to cost the same. So what a step without prompts takes
    is known for any number of rows, also where prompts always wait and there is no such step any more.
    """

    def __init__(self, least: int, most: int) -> None:
        super().__init__(least)
        self.most = most
        self._offered = self._tried = least  # prompt tokens: the last budget, and the last lot that filled it
        self._small, self._usual = LastSteps(), LastSteps()
        self._since_small = 0  # usual lots

    def note(self, num_prompt_tokens: int, num_decoding: int, seconds: float) -> None:
        super().note(num_prompt_tokens, num_decoding, seconds)
        if not num_decoding or not num_prompt_tokens:
            return
        num_tokens = num_prompt_tokens + num_decoding
        if num_prompt_tokens <= self._offered // 2:
            self._small.note(num_tokens, seconds)
            self._since_small = 0
        else:
            self._usual.note(num_tokens, seconds)
            self._tried = num_prompt_tokens
            self._since_small += 1

    def beside(self, num_running: int, *, can_wait: bool = False) -> int:
        """No more than twice the tokens of the last step with prompts: what more would take is not known."""
        wanted = self._affordable(num_running, PATIENT_STEPS if can_wait else 1)
        self._offered = max(self._least, min(wanted, 2 * self._tried, self.most))
        if self._since_small <= len(self._small):  # small lots are due more often at first
            return self._offered
        self._since_small = 0  # also if prompts take none of it
        return max(1, self._offered // SMALL_PART)

    def _affordable(self, num_running: int, num_steps: int) -> int:
        """How many prompt tokens take as long as so many steps without, or so many constants."""
        costs = self._costs(num_running)
        if costs is None:
            return self._least
        most_s = num_steps * max(costs.decode_s, costs.prompt_s) + max(0.0, -costs.prompt_s)
        return int(most_s / costs.token_s) if costs.token_s > 0 else self.most

    def _costs(self, num_running: int) -> Costs | None:
        """By the steps so far; None until there was one with prompts beside streams, and one without."""
        without, small, usual = self._without.mean, self._small.mean, self._usual.mean
        if without is None or usual is None:
            return None
        near = small or without
        token_s = max(0.0, (usual.seconds - near.seconds) / max(1.0, usual.tokens - near.tokens))
        return Costs(
            decode_s=without.seconds + token_s * (num_running - without.tokens),
            prompt_s=near.seconds - without.seconds - token_s * (near.tokens - without.tokens),
            token_s=token_s,
        )
