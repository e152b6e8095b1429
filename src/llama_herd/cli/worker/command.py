"""`herd worker`: Celery's worker with our pool, in this process or in one process per GPU."""

import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, NamedTuple

import structlog
import typer
from celery.bin.celery import celery
from celery.exceptions import SecurityWarning
from click.exceptions import Abort

from llama_herd.cli.signals import on_signals
from llama_herd.tasks.connection import connect, redis_errors
from llama_herd.worker.process import EXIT_DEVICE_LOST
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

POLL_S = 0.1

#: Exit codes after which a new start is useless: the child was told to end, or its settings are wrong.
FINAL_CODES = (0, 2)


class Backoff(NamedTuple):
    """Pauses before a dead child is started again: each twice as long, until one run lasts long enough.

    A GPU that was lost rarely comes back by itself, and each try may hold up the others: it gets longer ones.
    """

    first_s: float = 1.0
    most_s: float = 60.0
    sound_s: float = 300.0
    lost_first_s: float = 60.0
    lost_most_s: float = 3_600.0

    def after(self, pause_s: float, ran_s: float, exit_code: int) -> float:
        """The next pause, after one of `pause_s` and a run of `ran_s` that ended with this code."""
        is_lost = exit_code == EXIT_DEVICE_LOST
        first_s, most_s = (self.lost_first_s, self.lost_most_s) if is_lost else (self.first_s, self.most_s)
        return first_s if ran_s >= self.sound_s else min(most_s, max(first_s, 2 * pause_s))


DEFAULT_BACKOFF = Backoff()


def run_together(commands: Mapping[str, Sequence[str]], backoff: Backoff = DEFAULT_BACKOFF) -> int:
    """Run the named commands side by side until all have ended for good, or a signal has ended them.

    SIGINT and SIGTERM are passed on to all children as SIGTERM, also a second one. After the first, no child
    is started again. Returns the first exit code other than 0 of children that were not started again; for a
    child that a signal killed it is 128 + the signal's number.
    """
    children = [Child(name, command, backoff) for name, command in commands.items()]

    def end_all() -> None:
        for child in children:
            child.end()

    with on_signals((signal.SIGINT, signal.SIGTERM), end_all):
        try:
            while not all(child.has_ended for child in children):
                for child in children:
                    child.look()
                sleep(POLL_S)
        finally:
            for child in children:
                child.kill()
    return next((child.exit_code for child in children if child.exit_code), 0)


class Child:
    """A command that is run again when it dies. `look` does all the work and must be called regularly."""

    def __init__(self, name: str, command: Sequence[str], backoff: Backoff) -> None:
        self._name = name
        self._command = command
        self._backoff = backoff
        self._pause_s = 0.0
        self._start_s = monotonic()  # when it was started, or will be
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self.exit_code = 0

    @property
    def has_ended(self) -> bool:
        """Whether it does not run and will not be started again."""
        return self._process is None and self._is_ending

    def look(self) -> None:
        """Start it if that is due; if it has ended, decide whether and when to start it again."""
        if self._process is None:
            if not self._is_ending and monotonic() >= self._start_s:
                self._start()
        elif self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            self._note_end(128 - code if code < 0 else code)

    def end(self) -> None:
        """Ask it to end, and do not start it again; may be called from a signal handler."""
        self._is_ending = True
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _start(self) -> None:
        self._start_s = monotonic()
        # A session of its own: otherwise Ctrl-C in a terminal would reach the children twice.
        self._process = subprocess.Popen(self._command, start_new_session=True)
        if self._is_ending:  # a signal has come meanwhile
            self._process.terminate()

    def _note_end(self, exit_code: int) -> None:
        """Decide whether a child that has ended is started again, and when."""
        ran_s = monotonic() - self._start_s
        facts = {"child": self._name, "exit_code": exit_code, "ran_s": round(ran_s, 1)}
        if self._is_ending or exit_code in FINAL_CODES:
            self._is_ending, self.exit_code = True, exit_code
            log.info("child ended", **facts)
            return
        self._pause_s = self._backoff.after(self._pause_s, ran_s, exit_code)
        self._start_s = monotonic() + self._pause_s
        event = "child died, restarting it"
        if exit_code == EXIT_DEVICE_LOST:
            event = "GPU lost, trying it again after a pause"
        log.error(event, **facts, pause_s=self._pause_s)


APP = "llama_herd.tasks.app"

#: The exit code of a command that Ctrl-C ends: 128 + SIGINT.
EXIT_INTERRUPTED = 130


def run_celery_worker(settings: WorkerSettings, name: str | None, *, waits: bool = False) -> int:
    """Run a worker to its end and return its exit code.

    waits: whether it waits for a Redis that is away; else RedisUnavailable is raised.
    """
    if not waits:
        with connect(settings.redis_url) as redis, redis_errors(settings.redis_url):
            redis.ping()
    # Celery warns about root because of pickles, which are refused here. In containers root is common.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    node = f"{name or f'herd-{os.getpid()}'}@%h"
    command = ["--app", APP, "--quiet", "worker", "--without-gossip", "--without-mingle"]
    try:
        code = celery.main([*command, "--loglevel", "INFO", "--hostname", node], standalone_mode=False)
    except Abort:  # Ctrl-C before Celery handles it
        return EXIT_INTERRUPTED
    return int(code or 0)


Model = Annotated[
    Path | None,
    typer.Option(
        help="GGUF file, Hugging Face folder, or hf:OWNER/NAME; absent: HERD_MODEL, else the bundled one."
    ),
]
ServedModelName = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Name that jobs ask for; absent: that of the file."),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, or cuda:N with the number that nvidia-smi shows."),
]
Slots = Annotated[int | None, typer.Option(help="Most sequences in the batch at a time.")]
Name = Annotated[str | None, typer.Option(help="Name of the worker; its full name is NAME@HOST.")]
Gpus = Annotated[
    str | None, typer.Option(help="Start one worker on each of these GPUs: all, or numbers such as 0,1.")
]
MetricsPort = Annotated[
    int | None, typer.Option(help="Port of Prometheus metrics; with --gpus the next GPU takes the next.")
]
WithRedis = Annotated[
    bool, typer.Option("--with-redis", help="Also start a Redis. Its data is lost when the worker ends.")
]
WaitForRedis = Annotated[
    bool, typer.Option("--wait-for-redis", help="Wait for a Redis that is away, as workers of --gpus do.")
]


def worker(
    model: Model = None,
    served_model_name: ServedModelName = None,
    device: Device = None,
    slots: Slots = None,
    name: Name = None,
    gpus: Gpus = None,
    metrics_port: MetricsPort = None,
    with_redis: WithRedis = False,
    wait_for_redis: WaitForRedis = False,
) -> None:
    """Take jobs from the model's queue and run them.

    `herd settings` shows what else can be set. With --gpus, a process that dies is started again while the
    others go on, unless its settings are wrong (exit code 2).
    """
    from llama_herd.extras import need_worker_extra

    need_worker_extra("herd worker")
    from llama_herd.cli.environment import override_settings, read_settings
    from llama_herd.cli.worker.command import run_celery_worker, run_together
    from llama_herd.local.own_redis import own_redis
    from llama_herd.worker.logs import set_up_logs
    from llama_herd.worker.settings import WorkerSettings

    _check_options(name, device, gpus)
    override_settings(
        model=model,
        served_model_name=served_model_name,
        device=device,
        slots=slots,
        metrics_port=metrics_port,
    )
    settings = read_settings(WorkerSettings)
    with own_redis(settings.redis_url, "--with-redis") if with_redis else nullcontext():
        if gpus is None:
            exit_code = run_celery_worker(settings, name, waits=wait_for_redis)
        else:
            set_up_logs(settings.log_format, settings.log_level.upper())
            exit_code = run_together(card_commands(gpus, settings.metrics_port))
    raise typer.Exit(exit_code)


def _check_options(name: str | None, device: str | None, gpus: str | None) -> None:
    """Raise BadInput if the options contradict each other, or the name cannot be one."""
    from llama_herd.errors import BadInput

    if gpus is not None and (name is not None or device is not None):
        raise BadInput("--gpus sets devices and names by itself. Fix: leave out --device and --name")
    if name is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is None:
        raise BadInput("--name must be 1 to 64 letters, digits, dots, underscores or dashes")


def card_commands(gpus: str, metrics_port: int = 0) -> dict[str, list[str]]:
    """The command of each GPU's worker, by its name. Raises BadInput, which lists the GPUs.

    Each waits for Redis: one that dies while Redis is away too would not be started again.
    metrics_port: that of the first; the others take the next ones. 0: none.
    """
    command = [sys.executable, "-m", "llama_herd.cli", "worker", "--wait-for-redis"]
    commands = {
        f"gpu{card}": [*command, "--device", f"cuda:{card}", "--name", f"gpu{card}"]
        for card in _chosen_cards(gpus)
    }
    if metrics_port:
        for port, arguments in enumerate(commands.values(), metrics_port):
            arguments += ["--metrics-port", str(port)]
    return commands


def _chosen_cards(gpus: str) -> list[int]:
    """The numbers of the GPUs that the option names. Raises BadInput, which lists the GPUs here."""
    from llama_herd.errors import BadInput, DeviceError
    from llama_herd.worker.loading.device import visible_cards

    cards = visible_cards()
    if gpus != "all" and re.fullmatch(r"\d+(,\d+)*", gpus) is None:
        raise BadInput(f"--gpus {gpus}: must be all, or numbers of GPUs such as 0,1")
    chosen = list(range(len(cards))) if gpus == "all" else sorted({int(card) for card in gpus.split(",")})
    if not chosen or chosen[-1] >= len(cards):
        found = "; ".join(f"{number} = {card}" for number, card in enumerate(cards)) or "none"
        raise DeviceError(f"--gpus {gpus}, but the GPUs here are: {found}. Fix: name those, or --device cpu")
    return chosen
