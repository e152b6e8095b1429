"""What the demo shows: its jobs, the phases of its start, its figures; and the screen that shows them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any, Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llama_herd.cli.terminal import harmless
from llama_herd.counted import counted
from llama_herd.tasks.client.batch.batch_progress import Percentiles
from llama_herd.tasks.protocol.events import GOOD_ENDS, End, Event, Started, Token

DemoJobState = Literal["queued", "prefill", "decode", "done", "failed"]

#: Eight openings of tales like those that the bundled model was trained on.
PROMPTS = (
    "Once upon a time, a curious fox named Mia lived by the river. One sunny morning, Mia lost her red kite.",
    "Long ago, a kind baker named Otto lived in a small village. One evening, a great storm came, and Rosa "
    "the hedgehog knocked at the door.",
    "Once, a shy owl named Theo lived under an old oak. Theo was afraid of the dark, but he told nobody.",
    "Once upon a time, a young gardener named Clara lived on a green hill. One warm day, Clara found a seed "
    "and planted it behind the house.",
    "Long ago, a quiet mouse named Pip lived behind the mill. One windy night, Pip heard a strange sound: "
    "tap tap tap.",
    "Once, a lively otter named Finn lived beside the lake. Finn had never seen the sea, so one bright "
    "morning he set out on foot.",
    "Once upon a time, a cheerful goose named Greta lived close to the lighthouse. One clear night, Greta "
    "saw a falling star and wished for a true friend.",
    "Long ago, an old bear named Karl lived at the edge of the forest. One cold evening, Karl made onion "
    "soup for supper.",
)


@dataclass(eq=False, slots=True)
class DemoJob:
    """One job. Times are seconds on the clock of time.monotonic, taken when an event arrives."""

    prompt: str
    seed: int
    job_id: str = ""
    state: DemoJobState = "queued"
    text: str = ""
    num_tokens: int = 0
    submitted_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    end: End | None = None

    def note(self, event: Event, now_s: float) -> None:
        """Take in the job's next event."""
        match event:
            case Started():
                self.state = "prefill"
            case Token():
                self.state = "decode"
                self.text += event.text
                self.num_tokens += len(event.ids)
                self.token_times_s.append(now_s)
            case End():
                self.state = "done" if event.finish_reason in GOOD_ENDS else "failed"
                self.end = event

    @property
    def ttft_s(self) -> float | None:
        """Seconds from submission to the first token."""
        return self.token_times_s[0] - self.submitted_s if self.token_times_s else None

    def to_dict(self) -> dict[str, Any]:
        """The job for programs."""
        return {
            "job": self.job_id,
            "prompt": self.prompt,
            "text": self.text,
            "num_tokens": self.num_tokens,
            "ttft_s": self.ttft_s,
            "finish_reason": self.end.finish_reason if self.end else None,
        }


def new_jobs() -> list[DemoJob]:
    """A job for each prompt."""
    return [DemoJob(prompt, seed=number) for number, prompt in enumerate(PROMPTS, start=1)]


@dataclass
class Phase:
    """A step of the start; detail and time come while it runs."""

    name: str
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Figures:
    """How fast eight jobs were in one of two ways; --json tells all of it."""

    num_tokens: int
    seconds: float  # from the first submission to the last end
    tokens_per_s: float
    ttft: Percentiles  # from submission to the first token
    itl: Percentiles  # between tokens

    @classmethod
    def of(cls, jobs: Sequence[DemoJob], seconds: float) -> Self:
        num_tokens = sum(job.num_tokens for job in jobs)
        ttft = Percentiles.from_seconds([job.ttft_s for job in jobs if job.ttft_s is not None])
        gaps_s = [later - earlier for job in jobs for earlier, later in pairwise(job.token_times_s)]
        return cls(num_tokens, seconds, num_tokens / seconds, ttft, Percentiles.from_seconds(gaps_s))


@dataclass(frozen=True)
class DemoReport:
    """The phases of the start, then the same jobs together and one at a time; `jobs` ran together."""

    phases: Sequence[Phase]
    jobs: Sequence[DemoJob]
    together: Figures
    one_by_one: Figures
    exit_code: int  # 1 if any job did not end by itself, else 0

    @property
    def speedup(self) -> float:
        """Tokens per second together, divided by those one at a time: the gain of continuous batching."""
        return self.together.tokens_per_s / self.one_by_one.tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "jobs": [job.to_dict() for job in self.jobs],
            "together": asdict(self.together),
            "one_by_one": asdict(self.one_by_one),
            "speedup": self.speedup,
        }


FRAMES_PER_S = 12
#: Colours of the states; the rest of the panel has none.
STYLES = {"queued": "dim", "prefill": "yellow", "decode": "cyan", "done": "green", "failed": "red"}
#: Columns besides the text: number, state, tokens and what separates them.
NUM_OTHER_COLUMNS = 18
#: Lines besides the jobs: the phases, the footer, empty ones.
NUM_OTHER_LINES = 8
#: Most lines of a job's text that are shown.
MAX_LINES = 3


class DemoScreen:
    """Shows the demo as plain lines without control codes, for files, pipes and CI.

    is_live: on a terminal a spinner turns while something starts, and a panel moves while the jobs run.
    """

    def __init__(self, console: Console, *, is_live: bool = False) -> None:
        self.phases: list[Phase] = []
        self._console = console
        self._is_live = is_live

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """The block is one phase, which is shown once it has ended."""
        phase, started_s = Phase(name), monotonic()
        spinner = self._console.status(name, spinner="dots", spinner_style="dim")
        with spinner if self._is_live else nullcontext():
            yield phase
        phase.seconds = monotonic() - started_s
        self.phases.append(phase)
        seconds = (f"  {phase.seconds:.2f} s", "dim")
        self._console.print(Text.assemble(f"{phase.name:<8}{phase.detail}", seconds))

    @contextmanager
    def together(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        """The jobs run together in the block."""
        if self._is_live:
            self._console.print()
            with self._live(lambda: job_panel(jobs, self._console)):
                yield
            return
        yield
        self._console.print()
        for number, job in enumerate(jobs, start=1):
            text = " ".join(harmless(job.prompt + job.text).split())
            self._print_whole(f"{number} {job.state}, {counted(job.num_tokens, 'token')}: {text}")

    @contextmanager
    def one_by_one(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        """The jobs run one after the other in the block."""

        def count() -> Text:
            num_done = sum(job.end is not None for job in jobs)
            return Text(f"the same jobs one at a time, to compare: {num_done} of {len(jobs)}", "dim")

        with self._live(count, transient=True) if self._is_live else nullcontext():
            yield

    def _live(self, draw: Callable[[], RenderableType], *, transient: bool = False) -> Live:
        return Live(
            get_renderable=draw,
            console=self._console,
            refresh_per_second=FRAMES_PER_S,
            transient=transient,
        )

    def show_report(self, report: DemoReport, next_steps: Mapping[str, str]) -> None:
        """Show the results, and what to do next: what each command is good for."""
        self._console.print()
        self._console.print(_comparison(report))
        self._console.print("\nTry next:")
        for command, purpose in next_steps.items():
            self._console.print(Text(f"  # {purpose}", style="dim"))
            self._print_whole(f"  {command}")

    def _print_whole(self, line: str) -> None:
        """Print one line, however long, so that commands can be copied."""
        self._console.print(Text(line), soft_wrap=True)


def _comparison(report: DemoReport) -> Table:
    """The figures side by side: a column for each way to run the jobs."""
    together, alone = report.together, report.one_by_one
    table = Table("", "together", "one by one", "", box=None, header_style="dim", pad_edge=False)
    for column in table.columns[1:3]:
        column.justify = "right"
    fast, slow = f"[bold]{together.tokens_per_s:,.0f}[/]", f"{alone.tokens_per_s:,.0f}"
    table.add_row("tokens/s", fast, slow, f"x {report.speedup:.1f} by continuous batching")
    for name, one, other in (
        ("first token", together.ttft, alone.ttft),
        ("between tokens", together.itl, alone.itl),
    ):
        table.add_row(f"{name} p50", _ms(one.p50_s), _ms(other.p50_s))
        table.add_row(f"{name} p95", _ms(one.p95_s), _ms(other.p95_s))
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f} ms"


def job_panel(jobs: Sequence[DemoJob], console: Console) -> Group:
    """The jobs as they are now. Its height never changes, so nothing jumps or flickers."""
    num_lines = max(1, min(MAX_LINES, (console.height - NUM_OTHER_LINES) // len(jobs)))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(width=7)
    table.add_column(width=4, justify="right")
    table.add_column()
    for number, job in enumerate(jobs, start=1):
        text = _last_lines(console, job, console.width - NUM_OTHER_COLUMNS, num_lines)
        table.add_row(str(number), Text(job.state, STYLES[job.state]), str(job.num_tokens), text)
    return Group(table, Text(), Text(_footer(jobs), "dim"))


def _footer(jobs: Sequence[DemoJob]) -> str:
    num_tokens = sum(job.num_tokens for job in jobs)
    num_of = Counter(job.state for job in jobs)
    rate = 0.0
    if num_tokens:  # from the first submission to the newest token
        newest_s = max(job.token_times_s[-1] for job in jobs if job.token_times_s)
        rate = num_tokens / (newest_s - min(job.submitted_s for job in jobs if job.submitted_s))
    return (
        f"{rate:,.0f} tokens/s   {num_of['prefill'] + num_of['decode']} in the batch   "
        f"{num_of['queued']} queued   {counted(num_tokens, 'token')}"
    )


def _last_lines(console: Console, job: DemoJob, width: int, num_lines: int) -> Text:
    """The end of prompt and text in exactly `num_lines` lines."""
    text = Text.assemble((_one_line(job.prompt), "dim"), _one_line(job.text))
    lines = text.wrap(console, max(1, width))[-num_lines:]
    lines += [Text()] * (num_lines - len(lines))
    return Text("\n").join(lines)


def _one_line(text: str) -> str:
    return harmless(text.translate({ord("\n"): " ", ord("\t"): " "}))
