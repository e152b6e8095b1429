"""`herd health`: is the worker of this machine up? For container health checks."""

import socket
from typing import Annotated, NoReturn

import typer

from llama_herd.cli.terminal import say


def health(
    name: Annotated[
        str | None,
        typer.Option(help="Name of the worker, as given to `herd worker`; absent: any worker here."),
    ] = None,
) -> None:
    """Tell whether a worker of this machine is up.

    Exit code 0 when one has reported within the last seconds that it is ready. Otherwise 1, also while it
    still loads its model. A worker that leaves out a queue is ready as long as it reads another one, and one
    that is drained is up.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.errors import HerdError
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.protocol.worker_status import SOUND, TROUBLE
    from llama_herd.worker.settings import WorkerSettings

    try:
        with Client(settings=read_settings(WorkerSettings).for_first_tenant) as client:
            workers = client.workers()
    except HerdError as error:
        _fail(str(error))  # a health check knows 0 and 1 only
    place = f"@{socket.gethostname()}"
    here = [one for one in workers if (one.name == f"{name}{place}" if name else one.name.endswith(place))]
    if not here:
        ready = ", ".join(worker.name for worker in workers if worker.state == "ready")
        missing = f"no worker {name}{place} is up" if name else f"no worker is up on {place[1:]}"
        _fail(f"{missing}. Ready are: {ready or 'none'}")
    if not any(worker.state in SOUND for worker in here):
        states = (f"{one.name} is {one.shown_state}: {TROUBLE.get(one.state, 'not ready')}" for one in here)
        complaints = dict.fromkeys(complaint for one in here for complaint in one.complaints)
        _fail("; ".join((*states, *complaints)))


def _fail(complaint: str) -> NoReturn:
    say(str(complaint))
    raise typer.Exit(1)
