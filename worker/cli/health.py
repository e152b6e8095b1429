"""`herd health`: is the worker of this machine up? For container health checks."""

import socket
import sys
from typing import Annotated, NoReturn

import typer


def health(
    name: Annotated[
        str | None, typer.Option(help="Name of the worker, as given to `herd worker`; absent: any one here.")
    ] = None,
) -> None:
    """Tell whether a worker of this machine is up.

    Exit code 0 when one has said within the last seconds that it is ready, else 1.
    """
    from llama_herd.errors import HerdError
    from llama_herd.tasks.client import Client
    from llama_herd.tasks.worker_status import TROUBLE
    from llama_herd.worker.cli.environment import read
    from llama_herd.worker.settings import WorkerSettings

    try:
        with Client(settings=read(WorkerSettings).of_first_tenant) as client:
            states = {worker.name: worker.state for worker in client.workers()}
    except HerdError as error:
        _fail(str(error))  # a health check knows 0 and 1 only
    place = f"@{socket.gethostname()}"
    here = {
        full: state
        for full, state in states.items()
        if (full == f"{name}{place}" if name else full.endswith(place))
    }
    if not here:
        ready = ", ".join(full for full, state in states.items() if state == "ready")
        _fail(f"no worker {name or ''}{place} is up. Ready are: {ready or 'none'}")
    if "ready" not in here.values():
        troubles = (f"{full} is {state}: {TROUBLE.get(state, 'not ready')}" for full, state in here.items())
        _fail("; ".join(troubles))


def _fail(complaint: str) -> NoReturn:
    print(f"herd: {complaint}", file=sys.stderr)
    raise typer.Exit(1)
