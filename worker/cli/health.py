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
    from llama_herd.worker.cli.environment import read
    from llama_herd.worker.settings import WorkerSettings

    try:
        with Client(settings=read(WorkerSettings).of_first_tenant) as client:
            ready = [worker.name for worker in client.workers() if worker.state == "ready"]
    except HerdError as error:
        _fail(str(error))  # a health check knows 0 and 1 only
    place = f"@{socket.gethostname()}"
    is_here = f"{name}{place}" in ready if name else any(full.endswith(place) for full in ready)
    if not is_here:
        _fail(f"no worker {name or ''}{place} is ready. Ready are: {', '.join(ready) or 'none'}")


def _fail(complaint: str) -> NoReturn:
    print(f"herd: {complaint}", file=sys.stderr)
    raise typer.Exit(1)
