"""Prompts beside streams on a simulated card: what the budget of prompt tokens does to throughput and gaps.

    python -m benchmarks.simulated_card [--write]

The engine as it is, with a runner that computes nothing and a clock that it moves. 1,024 jobs of 256 prompt
tokens come at once to 256 rows; all write 256 tokens (W3), or 64 to 448 (W3s). A step costs what one of a 7B
model in bf16 was measured to cost on an H200. Prompts are computed kernel by kernel beside the captured rows,
or in one captured forward with them. W4: jobs of 256 prompt tokens and 128 of output come at random times.
None is computed before its start is on record, which takes a while.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence as Rows
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count, islice, pairwise
from math import inf
from random import Random

from benchmarks.harness import Benchmark, main, percentiles_ms
from benchmarks.report import Cell, Table
from llama_herd.model.pages import PAGE_TOKENS, Pages
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.tasks.protocol.priority import MIN_PRIORITY
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Admitted, NewTokens, SampledToken, SequenceInfo, StepOutput
from llama_herd.worker.engine.prefill import TOKENS, prefills_of
from llama_herd.worker.engine.prefill_budget import ForwardCosts, PrefillBudget
from llama_herd.worker.engine.runner import Read, Reading, Row, TokenReading
from llama_herd.worker.engine.sequence import Sequence

VOCABULARY = 32_000
PIECES = [b"x"] * 2
OUTPUT_TOKENS = {"W3": (256, 256), "W3s": (64, 448)}


@dataclass(frozen=True)
class Costs:
    """What a step takes, in seconds: its rows, their tokens in the cache, and its prompt tokens."""

    step_s: float = 4.4e-3  # reading the weights, small kernels, the host
    row_s: float = 13e-6
    cached_token_s: float = 134e-9  # reading its keys and values
    prompt_s: float = 11e-3  # of any step that carries a prompt
    prompt_token_s: float = 14e-6
    is_captured: bool = False  # in forwards of a few sizes

    def of(self, rows: Rows[Row]) -> float:
        decoding = [row for row in rows if row.decodes]
        prompt_tokens = sum(row.num_tokens for row in rows if not row.decodes)
        if self.is_captured:
            prompt_tokens = sum(one.bucket for one in prefills_of(rows))
        step_s = self.step_s + self.row_s * len(decoding) + self.prompt_token_s * prompt_tokens
        step_s += self.cached_token_s * sum(row.start for row in decoding)
        return step_s + (self.prompt_s if prompt_tokens else 0.0)

    @property
    def of_forwards(self) -> ForwardCosts | None:
        """As they are measured at the start, where they are captured."""
        prompts_s = {num_tokens: self.prompt_s + self.prompt_token_s * num_tokens for num_tokens in TOKENS}
        return ForwardCosts(self.step_s + self.row_s, prompts_s) if self.is_captured else None


#: Prompts computed kernel by kernel, as before, and in the captured forward of the rows.
CARDS = {
    "kernel by kernel": Costs(),
    "captured": Costs(prompt_s=0.8e-3, prompt_token_s=19e-6, is_captured=True),
}


@dataclass
class SimulatedRunner:
    """Computes nothing. Its clock moves by what the rows of each step cost, times a noise."""

    costs: Costs
    noise: float = 0.0
    random: Random = field(default_factory=Random)
    now_s: float = 0.0
    prompt_tokens: list[int] = field(default_factory=list)  # of each step
    on_layer: Callable[[], None] | None = None
    overlaps: bool = False

    def begin(self, sequence: Sequence) -> None:
        """Nothing is copied."""

    def launch(self, rows: Rows[Row]) -> Read:
        self.now_s += self.costs.of(rows) * (1 + self.noise * self.random.random())
        self.prompt_tokens.append(sum(row.num_tokens for row in rows if not row.decodes))
        readings: list[Reading] = [
            TokenReading(row, [], SampledToken(1) if row.is_complete else None) for row in rows
        ]
        return lambda: readings


@dataclass
class OverlappingRunner(SimulatedRunner):
    """Its clock moves when a step is read: the card computes one behind the other."""

    overlaps: bool = True
    free_s: float = 0.0

    def launch(self, rows: Rows[Row]) -> Read:
        launched_s = self.now_s
        self.now_s = max(launched_s, self.free_s)
        read = super().launch(rows)
        self.now_s, self.free_s = launched_s, self.now_s
        return partial(self._read, self.free_s, read)

    def _read(self, done_s: float, read: Read) -> list[Reading]:
        self.now_s = max(self.now_s, done_s)
        return read()


class SimulatedEngine:
    """The engine on a simulated card, and when each sequence had its tokens."""

    def __init__(
        self, runner: SimulatedRunner, *, num_rows: int, most_tokens: int, prefill: PrefillBudget
    ) -> None:
        self.runner = runner
        self.drawn_s: dict[str, list[float]] = {}
        self.begun: deque[tuple[float, SequenceInfo]] = deque()  # and when
        pages = Pages(num_rows * -(-most_tokens // PAGE_TOKENS), consecutive=False)
        self.engine = Engine(
            runner,
            PrefixCache(pages),
            max_rows=num_rows,
            prefill=prefill,
            sink=self._take,
            clock=lambda: runner.now_s,
        )

    def submit(
        self, job_id: str, prompt: list[int], max_tokens: int, priority: int = 0, *, is_confirmed: bool = True
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
        one = Sequence(
            job_id, prompt, params, 1, 1 << 20, frozenset(), Detokenizer(PIECES), priority=priority
        )
        one.is_confirmed = is_confirmed
        self.engine.submit(one)

    def run(self) -> None:
        while self.engine.has_work:
            self.engine.step()

    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.engine.step()

    def gaps_s(self) -> list[float]:
        """Between two tokens of a sequence, all of them."""
        return [later - sooner for times in self.drawn_s.values() for sooner, later in pairwise(times)]

    def _take(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            if isinstance(output, Admitted):
                self.begun.append((self.runner.now_s, output.sequence))
            if isinstance(output, NewTokens):
                self.drawn_s.setdefault(output.sequence.job_id, []).append(self.runner.now_s)


@dataclass(frozen=True)
class Plan:
    jobs: int = 1024
    prompt_tokens: int = 256
    rows: int = 256
    budgets: tuple[int, ...] = (256, 1024, 4096)
    short_tokens: int = 128
    loads: tuple[float, ...] = (0.5, 0.8)
    record_ms: tuple[float, ...] = (1, 3, 10)


def measure(plan: Plan) -> Iterator[Table]:
    ways = {"by default": (0, 0), "by default, jobs can wait": (0, MIN_PRIORITY)}
    ways |= {str(budget): (budget, 0) for budget in plan.budgets}
    for load, output_tokens in OUTPUT_TOKENS.items():
        rows: list[dict[str, Cell]] = [
            {"prompts": card, "prefill tokens": way, **simulated(plan, costs, output_tokens, *ways[way])}
            for card, costs in CARDS.items()
            for way in ways
        ]
        yield Table(rows, f"{load}: {plan.jobs:,} jobs at once, {plan.rows} rows")
    waits = [first_tokens(plan, share, ms) for share in plan.loads for ms in plan.record_ms]
    yield Table(waits, f"W4: {plan.jobs:,} jobs at random times, prompts captured")


def simulated(
    plan: Plan, costs: Costs, output_tokens: tuple[int, int], budget: int, priority: int
) -> dict[str, float]:
    random, runner = Random(1), SimulatedRunner(costs)
    one = SimulatedEngine(
        runner,
        num_rows=plan.rows,
        most_tokens=plan.prompt_tokens + output_tokens[1],
        prefill=PrefillBudget.from_setting(budget, "cuda", costs.of_forwards),
    )
    one.submit("warm-up", random.choices(range(VOCABULARY), k=plan.prompt_tokens), 8, priority)
    one.run()
    one.drawn_s.clear()
    runner.prompt_tokens.clear()
    begun_s = runner.now_s
    for number in range(plan.jobs):
        prompt = random.choices(range(VOCABULARY), k=plan.prompt_tokens)
        one.submit(f"job-{number}", prompt, random.randint(*output_tokens), priority)
    one.run()
    mixed = [tokens for tokens in runner.prompt_tokens if tokens]
    first_s = sorted(times[0] - begun_s for times in one.drawn_s.values())
    return {
        "tokens a second": sum(map(len, one.drawn_s.values())) / (runner.now_s - begun_s),
        "steps": len(runner.prompt_tokens),
        "with prompts": len(mixed),
        "their prompt tokens": sum(mixed) / len(mixed),
        "first tokens of all rows p50 s": first_s[plan.rows // 2],
        **{f"gap {name} ms": ms for name, ms in percentiles_ms(one.gaps_s()).items()},
    }


def first_tokens(plan: Plan, share: float, record_ms: float) -> dict[str, Cell]:
    """W4: the first tokens of jobs that come at random, at this share of the rate that fills all rows."""
    random, costs = Random(1), CARDS["captured"]
    runner = OverlappingRunner(costs)
    one = SimulatedEngine(
        runner,
        num_rows=plan.rows,
        most_tokens=plan.prompt_tokens + plan.short_tokens,
        prefill=PrefillBudget.from_setting(0, "cuda", costs.of_forwards),
    )
    jobs = ((f"job-{number}", random.choices(range(VOCABULARY), k=plan.prompt_tokens)) for number in count())
    for job_id, prompt in islice(jobs, plan.jobs):
        one.submit(job_id, prompt, plan.short_tokens)
    one.run()
    gap_s = runner.now_s / plan.jobs / share
    one.drawn_s.clear()
    one.begun.clear()
    come_s = accumulate((random.expovariate(1 / gap_s) for _ in range(plan.jobs)), initial=runner.now_s)
    arrivals = deque((at_s, *job) for at_s, job in zip(come_s, jobs, strict=False))
    arrived_s = {job_id: at_s for at_s, job_id, _ in arrivals}
    _serve(one, arrivals, plan.short_tokens, record_ms / 1000)
    first_s = {job_id: times[0] - arrived_s[job_id] for job_id, times in one.drawn_s.items()}
    alone_s = costs.step_s + costs.row_s + costs.prompt_s + costs.prompt_token_s * plan.prompt_tokens
    return {
        "load": share,
        "a start is recorded in ms": record_ms,
        **{f"first token {name} ms": ms for name, ms in percentiles_ms(list(first_s.values())).items()},
        "the prompt alone ms": 1000 * alone_s,
    }


def _serve(
    one: SimulatedEngine, arrivals: deque[tuple[float, str, list[int]]], max_tokens: int, record_s: float
) -> None:
    """What the engine's thread does, but on the runner's clock."""
    engine, runner = one.engine, one.runner

    def next_s() -> float:
        recorded_s = one.begun[0][0] + record_s if one.begun else inf
        return min(recorded_s, arrivals[0][0] if arrivals else inf)

    def take_due() -> None:
        while next_s() <= runner.now_s:
            if one.begun and one.begun[0][0] + record_s <= runner.now_s:
                begun_s, info = one.begun.popleft()
                engine.confirm([info], begun_s + record_s)
            else:
                _, job_id, prompt = arrivals.popleft()
                one.submit(job_id, prompt, max_tokens, is_confirmed=False)

    while engine.has_work or next_s() < inf:
        if not engine.has_work:
            runner.now_s = max(runner.now_s, next_s())
        take_due()
        engine.admit()
        while delay_s := engine.delay_s:
            until_s = runner.now_s + delay_s
            runner.now_s = min(until_s, next_s())
            if runner.now_s == until_s:
                break
            take_due()
            engine.admit()
        engine.step()


BENCHMARK = Benchmark("simulated_card", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
