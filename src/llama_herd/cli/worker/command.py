"""`herd worker`: Celery's worker with our pool, in this process or in one process per GPU."""

import re
import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from llama_herd.cli.connection import check_redis
from llama_herd.cli.job_options import Engine, EngineUrl, ModelFile
from llama_herd.errors import BadInput, DeviceError
from llama_herd.extras import need_extra

ServedModelName = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Name that jobs ask for; absent: that of the file or folder."),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, or cuda:N with the number that nvidia-smi shows."),
]
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
    model: ModelFile = None,
    served_model_name: ServedModelName = None,
    device: Device = None,
    slots: Annotated[int | None, typer.Option(help="Most sequences in the batch at a time.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the worker; its full name is NAME@HOST.")] = None,
    engine: Engine = None,
    engine_url: EngineUrl = None,
    gpus: Gpus = None,
    metrics_port: MetricsPort = None,
    with_redis: WithRedis = False,
    wait_for_redis: WaitForRedis = False,
) -> None:
    """Take jobs from the model's queue and run them.

    `herd settings` shows what else can be set. With --gpus, a process that dies is started again while the
    others go on, unless its settings are wrong (exit code 2).
    """
    need_extra("worker", "herd worker")
    from llama_herd.cli.environment import read_settings
    from llama_herd.cli.worker.children import run_together
    from llama_herd.local.redis_server import own_redis
    from llama_herd.ops.logs import set_up_logs
    from llama_herd.worker.celery_worker import run_celery_worker
    from llama_herd.worker.settings import WorkerSettings

    _check_options(name, device, gpus)
    settings = read_settings(
        WorkerSettings,
        model=model,
        served_model_name=served_model_name,
        device=device,
        slots=slots,
        engine=engine,
        engine_url=engine_url,
        metrics_port=metrics_port,
    )
    with own_redis(settings.redis_url, "--with-redis") if with_redis else nullcontext():
        if gpus is None:
            if not wait_for_redis:
                check_redis(settings)
            exit_code = run_celery_worker(name)
        else:
            set_up_logs(settings.log_format, settings.log_level.upper())
            exit_code = run_together(card_commands(gpus, settings.metrics_port))
    raise typer.Exit(exit_code)


def _check_options(name: str | None, device: str | None, gpus: str | None) -> None:
    """Raise BadInput if the options contradict each other, or the name cannot be one."""
    if gpus is not None and (name is not None or device is not None):
        raise BadInput("--gpus sets devices and names by itself. Fix: leave out --device and --name")
    if name is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is None:
        raise BadInput("--name must be 1 to 64 letters, digits, dots, underscores or dashes")


def card_commands(gpus: str, metrics_port: int = 0) -> dict[str, list[str]]:
    """The command of each GPU's worker, by its name. Raises BadInput, which lists the GPUs.

    Each waits for Redis: one that dies while Redis is away too would not be started again.
    metrics_port: that of the first; the others take the next ones. 0: none.
    """
    command = [sys.executable, "-m", "llama_herd", "worker", "--wait-for-redis"]
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
    from llama_herd.worker.loading.device import visible_cards

    cards = visible_cards()
    if gpus != "all" and re.fullmatch(r"\d+(,\d+)*", gpus) is None:
        raise BadInput(f"--gpus {gpus}: must be all, or numbers of GPUs such as 0,1")
    chosen = list(range(len(cards))) if gpus == "all" else sorted({int(card) for card in gpus.split(",")})
    if not chosen or chosen[-1] >= len(cards):
        found = "; ".join(f"{number} = {card}" for number, card in enumerate(cards)) or "none"
        raise DeviceError(f"--gpus {gpus}, but the GPUs here are: {found}. Fix: name those, or --device cpu")
    return chosen
