"""The demo: a Redis, workers and a client of its own. Eight jobs together and then alone, or a page."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Self, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llama_herd.cli.terminal import harmless, show
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess, settings_at, starting_worker
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.client.batch.batch_progress import Percentiles
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.protocol.events import End, Event, Started, Token
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import ACCESS
from llama_herd.worker.loading.machine import num_cores
from llama_herd.worker.settings import WorkerSettings

T = TypeVar("T")

#: How often to check whether a worker is up, and whether it still runs.
POLL_S = 0.05
#: No other model will come: a job for one need not wait for long.
UNSERVED_S = 60
#: A job that takes longer has failed.
JOB_TIMEOUT_S = 600.0

#: Workers beside a page: two, so that one can be killed while the other goes on.
NAMES = ("one", "two")
#: How long answers may go on after Ctrl-C.
GRACE_S = 2.0

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

#: The same seeds each time, so that the demo tells the same tales wherever it runs.
SAMPLING: SamplingFields = {"max_tokens": 160, "temperature": 0.7, "top_p": 0.95}


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
                self.state = "done" if event.finish_reason in ("stop", "length") else "failed"
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
    """How fast eight jobs were in one of two ways. seconds: from the first submission to the last end."""

    num_tokens: int
    seconds: float
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
            self._print_whole(f"{number} {job.state}, {job.num_tokens} tokens: {text}")

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
        f"{num_of['queued']} queued   {num_tokens:,} tokens"
    )


def _last_lines(console: Console, job: DemoJob, width: int, num_lines: int) -> Text:
    """The end of prompt and text in exactly `num_lines` lines."""
    text = Text.assemble((_one_line(job.prompt), "dim"), _one_line(job.text))
    lines = text.wrap(console, max(1, width))[-num_lines:]
    lines += [Text()] * (num_lines - len(lines))
    return Text("\n").join(lines)


def _one_line(text: str) -> str:
    return harmless(text.translate({ord("\n"): " ", ord("\t"): " "}))


def run_demo(settings: WorkerSettings, screen: DemoScreen) -> DemoReport:
    """Run the demo; `settings` say which model runs where, and their Redis is not used.

    Nothing that it starts outlives it, however it ends. Ctrl-C, SIGTERM and SIGHUP end it with
    KeyboardInterrupt. Raises ModelFileError, RedisUnavailable when there is no redis-server, WorkerDied,
    TimeoutError.
    """
    try:
        return asyncio.run(_run(settings, screen))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run(settings: WorkerSettings, screen: DemoScreen) -> DemoReport:
    # Signals end this task. An exception from a handler could arise anywhere, and an import, for example, can
    # swallow it.
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with ExitStack() as stack:
        with screen.phase("redis") as phase:
            server = stack.enter_context(EmbeddedRedis())
            phase.detail = f"{server.version}, embedded"
        settings = demo_settings(settings, server.url)
        worker = stack.enter_context(starting_worker(settings, "demo"))
        with screen.phase("model") as phase:
            # This imports torch, as the starting worker does too; in a thread, so that signals are heard.
            summary = await asyncio.to_thread(_describe, settings.model)
            phase.detail = f"{settings.served_model}: {summary}"
        return await _measure(settings, worker, screen)


async def _measure(settings: WorkerSettings, worker: WorkerProcess, screen: DemoScreen) -> DemoReport:
    """Run the jobs together, then one by one, on a worker that is warmed up."""
    async with AsyncClient(settings=settings, model=settings.served_model) as client:
        with screen.phase("worker") as phase:
            status = await _while_alive(worker, _warm_worker(client, worker))
            phase.detail = f"{status.device}, {status.slots} slots, first job done"
        jobs, again = new_jobs(), new_jobs()
        with screen.together(jobs):
            together = await _while_alive(worker, _run_round(client, jobs, are_together=True))
        with screen.one_by_one(again):
            one_by_one = await _while_alive(worker, _run_round(client, again, are_together=False))
    exit_code = int(any(job.state != "done" for job in (*jobs, *again)))
    return DemoReport(screen.phases, jobs, together, one_by_one, exit_code)


def demo_settings(settings: WorkerSettings, redis_url: str) -> WorkerSettings:
    """The settings of the demo's worker: the same model in the same way, at a Redis of the demo's own."""
    own = {"log_format": "console", "unserved_timeout_s": UNSERVED_S}
    return settings_at(settings, redis_url).model_copy(update=own)


def _describe(path: Path) -> str:
    """A model in a few words: bytes of its tensors, their main type, and their number."""
    # This imports torch: not before the demo's first line is shown.
    from llama_herd.model.files.open_model import open_model

    with open_model(path) as model:
        bytes_of = Counter[str]()
        for info in model.tensors:
            bytes_of[info.type.name] += info.num_bytes
        main_type = max(bytes_of, key=bytes_of.__getitem__)
        return f"{model.num_bytes / 1e6:.1f} MB, {main_type}, {len(model.tensors)} tensors"


async def _while_alive(worker: WorkerProcess, work: Coroutine[Any, Any, T]) -> T:
    """Do some work while the worker lives. Raises WorkerDied."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=POLL_S))[0]:
            worker.check()
        return task.result()
    finally:
        task.cancel()


async def _ready_worker(client: AsyncClient, worker: WorkerProcess) -> WorkerStatus:
    """What a worker says of itself once it is ready. Raises WorkerDied."""
    while True:
        for one in await client.workers():
            if one.name == worker.name and one.state == "ready":
                return one
        worker.check()
        await asyncio.sleep(POLL_S)


async def _warm_worker(client: AsyncClient, worker: WorkerProcess) -> WorkerStatus:
    """The worker, once it is ready and warmed up by a short job: the figures exclude torch's start."""
    status = await _ready_worker(client, worker)
    job_id = await client.submit(prompt=PROMPTS[0], sampling={"max_tokens": 4})
    await client.result(job_id, timeout_s=JOB_TIMEOUT_S)
    return status


async def _run_round(client: AsyncClient, jobs: Sequence[DemoJob], *, are_together: bool) -> Figures:
    started_s = monotonic()
    if are_together:
        await asyncio.gather(*(_follow(client, job) for job in jobs))
    else:
        for job in jobs:
            await _follow(client, job)
    return Figures.of(jobs, monotonic() - started_s)


async def _follow(client: AsyncClient, job: DemoJob) -> None:
    job.submitted_s = monotonic()
    job.job_id = await client.submit(prompt=job.prompt, sampling=SAMPLING | {"seed": job.seed})
    async for event in client.stream(job.job_id, timeout_s=JOB_TIMEOUT_S):
        job.note(event, monotonic())


async def serve_page(settings: WorkerSettings) -> None:
    """Serve the page, and keep two workers alive, until Ctrl-C, SIGTERM or SIGHUP.

    `settings` say which model runs where; their Redis is not used. Nothing outlives it, however it ends.
    Raises RedisUnavailable when there is no redis-server, WorkerDied when a worker cannot start.
    """
    from llama_herd.tasks.gateway.app import make_gateway_app
    from llama_herd.tasks.gateway.serve import Server

    with EmbeddedRedis() as redis:
        settings = _sharing_settings(settings, redis.url)
        # A gateway at a free port, for this machine only, and open to all of it.
        same = {name: getattr(settings, name) for name in ("redis_url", "tenant", *ACCESS)}
        own = {"gateway_host": "127.0.0.1", "gateway_cert_file": "", "gateway_key_file": ""}
        own |= {"gateway_request_log": "errors", "model_name": settings.served_model}
        read = GatewaySettings.read(gateway_port=0, gateway_open=True, gateway_grace_s=GRACE_S, **same, **own)
        server = Server(
            make_gateway_app(read), read, lambda url: show(f"open {url}    Ctrl-C ends all of it")
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.handle_exit, signal.SIGHUP, None)
        keepers = [asyncio.create_task(_keep_worker_alive(settings, name)) for name in NAMES]
        for keeper in keepers:
            keeper.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
        try:
            await server.serve()
        finally:
            for keeper in keepers:
                keeper.cancel()
            ends = await asyncio.gather(*keepers, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end


def _sharing_settings(settings: WorkerSettings, redis_url: str) -> WorkerSettings:
    """The settings of each worker beside a page: of cores and memory it takes its part."""
    share = settings.memory_share / len(NAMES)
    own = {"memory_share": share, "threads": settings.threads or max(1, num_cores() // len(NAMES))}
    return demo_settings(settings, redis_url).model_copy(update=own)


async def _keep_worker_alive(settings: WorkerSettings, name: str) -> None:
    """A worker, and another one when it dies. Raises WorkerDied if it does so before it is ready."""
    while True:
        with starting_worker(settings, name) as worker:
            async with AsyncClient(settings=settings.for_first_tenant) as client:
                await _ready_worker(client, worker)
            show(f"worker {worker.name} is ready    kill -9 {worker.process.pid} and see its jobs go on")
            while worker.is_alive:
                await asyncio.sleep(POLL_S)
        show(f"worker {worker.name} is dead    another one is on its way")
