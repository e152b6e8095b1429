"""`herd health`: is the worker of this machine up? For container health checks."""

import socket
import sys
from typing import Annotated

import typer

from llama_herd.cli.health_port import complaint_at, port_in_use
from llama_herd.cli.terminal import HELP_OPTIONS, say

Name = Annotated[
    str | None,
    typer.Option(help="Name of the worker, as given to `herd worker`; absent: any worker here."),
]


def health(name: Name = None) -> None:
    """Tell whether a worker of this machine is up.

    Exit code 0 when it is ready, otherwise 1, also while it still loads its model. A worker that leaves out a
    queue is ready as long as it reads another one, and one that is drained is up. Where the variable
    HERD_METRICS_PORT is set the worker there is asked, which costs least. Otherwise, and with --name, its
    record in Redis is looked for: there it has reported within the last seconds.
    """
    if name is None and (port := port_in_use()):
        complaint = complaint_at(port)
    else:
        complaint = _complaint_in_redis(name)
    if complaint:
        say(complaint)
        raise typer.Exit(1)


def run_health() -> None:
    """The entry point of this command, without the others."""
    alone = typer.Typer(context_settings=HELP_OPTIONS, add_completion=False, rich_markup_mode=None)
    alone.command()(health)
    alone(sys.argv[2:], prog_name="herd health")


def _complaint_in_redis(name: str | None) -> str:
    """Why no worker of this machine is ready, by the records in Redis; empty: one is."""
    from llama_herd.errors import HerdError
    from llama_herd.ops.settings import ServedSettings
    from llama_herd.tasks.connection.connect import connect, redis_errors
    from llama_herd.tasks.ledger.redis_call import run_call
    from llama_herd.tasks.ledger.reports import Reports
    from llama_herd.tasks.protocol.worker_status import SOUND, TROUBLE

    try:
        settings = ServedSettings.read().for_first_tenant
        with connect(settings.redis_url) as redis, redis_errors(settings.redis_url):
            workers = run_call(redis, Reports(settings.tenant).workers())
    except HerdError as error:
        return str(error)  # a health check knows 0 and 1 only
    place = f"@{socket.gethostname()}"
    here = [one for one in workers if (one.name == f"{name}{place}" if name else one.name.endswith(place))]
    if not here:
        ready = ", ".join(worker.name for worker in workers if worker.state == "ready")
        missing = f"no worker {name}{place} is up" if name else f"no worker is up on {place[1:]}"
        return f"{missing}. Ready are: {ready or 'none'}"
    if any(worker.state in SOUND for worker in here):
        return ""
    states = (f"{one.name} is {one.shown_state}: {TROUBLE.get(one.state, 'not ready')}" for one in here)
    complaints = dict.fromkeys(complaint for one in here for complaint in one.complaints)
    return "; ".join((*states, *complaints))
