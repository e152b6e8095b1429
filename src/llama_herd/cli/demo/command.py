"""`herd demo`: everything in one terminal, with nothing to set up."""

import asyncio
import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llama_herd.cli.demo.demo import demo_settings
from llama_herd.cli.demo.demo_job import DemoJob
from llama_herd.cli.demo.screen import DemoScreen
from llama_herd.cli.terminal import harmless, say, show
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess, starting_worker
from llama_herd.tasks.client.async_client import AsyncClient
from llama_herd.tasks.gateway.app import make_gateway_app
from llama_herd.tasks.gateway.serve import Server
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.settings import ACCESS
from llama_herd.worker.loading.threads import num_cores
from llama_herd.worker.settings import WorkerSettings

#: Two, so that one can be killed while the other goes on.
NAMES = ("one", "two")

#: How long answers may go on after Ctrl-C.
GRACE_S = 2.0

#: How often to check whether a worker is up, and whether it still runs.
POLL_S = 0.1


class WebDemo:
    """Runs once. Nothing that it starts outlives `run`, however `run` ends."""

    def __init__(self, settings: WorkerSettings) -> None:
        """`settings` say which model runs where; their Redis is not used."""
        self._settings = settings

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM or SIGHUP.

        Raises RedisUnavailable when there is no redis-server, WorkerDied when a worker cannot start.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        """Serve the page, and keep the workers alive, until a signal ends the server."""
        with EmbeddedRedis() as redis:
            settings = _sharing_settings(self._settings, redis.url)
            server = _gateway(settings)
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, server.handle_exit, signal.SIGHUP, None
            )
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
    """The settings of each worker: of cores and memory it takes its part."""
    share = settings.memory_share / len(NAMES)
    cores = num_cores()
    own = {"memory_share": share, "threads": settings.threads or max(1, cores // len(NAMES))}
    return demo_settings(settings, redis_url).model_copy(update=own)


def _gateway(settings: WorkerSettings) -> Server:
    """A gateway at a free port, for this machine only, and open to all of it."""
    same = {name: getattr(settings, name) for name in ("redis_url", "tenant", *ACCESS)}
    own = {"gateway_host": "127.0.0.1", "gateway_port": 0, "gateway_cert_file": "", "gateway_key_file": ""}
    own |= {"gateway_open": True, "gateway_request_log": "errors"}
    read = GatewaySettings.read(model_name=settings.served_model, gateway_grace_s=GRACE_S, **same, **own)
    return Server(make_gateway_app(read), read, lambda url: _say(f"open {url}    Ctrl-C ends all of it"))


async def _keep_worker_alive(settings: WorkerSettings, name: str) -> None:
    """A worker, and another one when it dies. Raises WorkerDied if it does so before it is ready."""
    while True:
        with starting_worker(settings, name) as worker:
            await _until_ready(settings, worker)
            _say(f"worker {worker.name} is ready    kill -9 {worker.process.pid} and see its jobs go on")
            while worker.is_alive:
                await asyncio.sleep(POLL_S)
        _say(f"worker {worker.name} is dead    another one is on its way")


async def _until_ready(settings: WorkerSettings, worker: WorkerProcess) -> None:
    async with AsyncClient(settings=settings.for_first_tenant) as client:
        while not any(one.name == worker.name and one.state == "ready" for one in await client.workers()):
            worker.check()
            await asyncio.sleep(POLL_S)


def _say(line: str) -> None:
    show(line)


FRAMES_PER_S = 12


#: Colours of the states; the rest of the panel has none.
STYLES = {"queued": "dim", "prefill": "yellow", "decode": "cyan", "done": "green", "failed": "red"}

#: Columns besides the text: number, state, tokens and what separates them.
NUM_OTHER_COLUMNS = 18

#: Lines besides the jobs: the phases, the footer, empty ones.
NUM_OTHER_LINES = 8

#: Most lines of a job's text that are shown.
MAX_LINES = 3


class LiveDemoScreen(DemoScreen):
    """As `DemoScreen`, with a spinner while something starts and a panel while the jobs run."""

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        with self._console.status(name, spinner="dots", spinner_style="dim"):
            yield

    @contextmanager
    def together(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        self._console.print()
        with Live(JobPanel(jobs), console=self._console, refresh_per_second=FRAMES_PER_S):
            yield

    @contextmanager
    def one_by_one(self, jobs: Sequence[DemoJob]) -> Iterator[None]:
        def count() -> Text:
            num_done = sum(job.end is not None for job in jobs)
            return Text(f"the same jobs one at a time, to compare: {num_done} of {len(jobs)}", "dim")

        with Live(
            get_renderable=count, console=self._console, refresh_per_second=FRAMES_PER_S, transient=True
        ):
            yield


class JobPanel:
    """Draws the jobs as they are now. Its height never changes, so nothing jumps or flickers."""

    def __init__(self, jobs: Sequence[DemoJob]) -> None:
        self._jobs = jobs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        num_lines = max(1, min(MAX_LINES, (console.height - NUM_OTHER_LINES) // len(self._jobs)))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=1)
        table.add_column(width=7)
        table.add_column(width=4, justify="right")
        table.add_column()
        for number, job in enumerate(self._jobs, start=1):
            text = _last_lines(console, job, options.max_width - NUM_OTHER_COLUMNS, num_lines)
            table.add_row(str(number), Text(job.state, STYLES[job.state]), str(job.num_tokens), text)
        yield table
        yield Text()
        yield Text(self._footer(), "dim")

    def _footer(self) -> str:
        num_tokens = sum(job.num_tokens for job in self._jobs)
        num_running = sum(job.is_running for job in self._jobs)
        num_queued = sum(job.state == "queued" for job in self._jobs)
        rate = num_tokens / self._elapsed_s if num_tokens else 0.0
        return (
            f"{rate:,.0f} tokens/s   {num_running} in the batch   {num_queued} queued   {num_tokens:,} tokens"
        )

    @property
    def _elapsed_s(self) -> float:
        """From the first submission to the newest token."""
        newest_s = max(job.token_times_s[-1] for job in self._jobs if job.token_times_s)
        return newest_s - min(job.submitted_s for job in self._jobs if job.submitted_s)


def _last_lines(console: Console, job: DemoJob, width: int, num_lines: int) -> Text:
    """The end of prompt and text in exactly `num_lines` lines."""
    text = Text.assemble((_one_line(job.prompt), "dim"), _one_line(job.text))
    lines = text.wrap(console, max(1, width))[-num_lines:]
    lines += [Text()] * (num_lines - len(lines))
    return Text("\n").join(lines)


def _one_line(text: str) -> str:
    return harmless(text.translate({ord("\n"): " ", ord("\t"): " "}))


if TYPE_CHECKING:
    from llama_herd.cli.demo.screen import DemoScreen
    from llama_herd.worker.settings import WorkerSettings


def demo(
    model: Annotated[
        Path | None,
        typer.Option(
            help="GGUF file, Hugging Face folder, or hf:OWNER/NAME; absent: HERD_MODEL, else the bundled one."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Stay, with two workers and a page for the browser, until Ctrl-C.")
    ] = False,
) -> None:
    """Show eight jobs side by side, with nothing to set up.

    They run through a Redis and a worker of the demo's own, first together, then one at a time. Nothing is
    left running. Exit code 0 when all jobs ended well.
    """
    from llama_herd.cli.environment import override_settings, read_settings
    from llama_herd.extras import need_gateway_extra, need_worker_extra
    from llama_herd.worker.loading.hub_model import with_model_here
    from llama_herd.worker.settings import WorkerSettings

    need_worker_extra("herd demo")
    if web:
        need_gateway_extra("herd demo --web")
    override_settings(model=model)
    named = read_settings(WorkerSettings)
    settings = with_model_here(named)
    if web:
        _serve_page(settings, as_json)
        return
    from llama_herd.cli.demo.demo import Demo
    from llama_herd.cli.demo.next_steps import next_steps
    from llama_herd.local.worker_process import WorkerDied

    screen = _open_screen(as_json)
    try:
        report = Demo(settings, screen).run()
    except (WorkerDied, TimeoutError) as error:
        say(str(error))
        raise typer.Exit(1) from None
    steps = next_steps(named)
    if as_json:
        print(json.dumps(report.to_dict() | {"next": [step._asdict() for step in steps]}))
    else:
        screen.show_report(report, steps)
    raise typer.Exit(report.exit_code)


def _serve_page(settings: "WorkerSettings", as_json: bool) -> None:
    """Serve the page for the browser until Ctrl-C."""
    from llama_herd.cli.demo.command import WebDemo
    from llama_herd.local.worker_process import WorkerDied

    if as_json:
        raise typer.BadParameter("the page has no report. Fix: give --json or --web, not both")
    try:
        WebDemo(settings).run()
    except WorkerDied as error:
        say(str(error))
        raise typer.Exit(1) from None


def _open_screen(as_json: bool) -> "DemoScreen":
    from rich.console import Console

    from llama_herd.cli.demo.command import LiveDemoScreen
    from llama_herd.cli.demo.screen import DemoScreen
    from llama_herd.live_console import is_live

    terminal = Console(highlight=False)
    if is_live(terminal) and not as_json:
        return LiveDemoScreen(terminal)
    return DemoScreen(Console(highlight=False, color_system=None, force_terminal=False, quiet=as_json))
