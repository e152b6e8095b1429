"""`herd drain`: let a worker take no more jobs, and stay up."""

from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.job_options import EndsAfter, parse_duration
from llama_herd.cli.terminal import show
from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client

#: How often it is looked whether the worker is drained, and how long it may take to begin.
POLL_S, BEGIN_S = 0.2, 10.0


Tenant = Annotated[
    list[str] | None,
    typer.Option(help="Tenant whose jobs it leaves; absent: HERD_TENANT. May be repeated."),
]


def drain(
    worker: Annotated[str, typer.Argument(help="Name of the worker, as herd status shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take jobs again.")] = False,
    for_: EndsAfter = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return once the worker has no job left.")] = False,
    tenant: Tenant = None,
) -> None:
    """Let a worker take no more jobs. It ends those that it has, or hands them back, and stays up.

    Jobs may go on for the worker's HERD_GRACE_S, as after SIGTERM. Then others go on at the next token.
    """
    if undo and (for_ is not None or wait):
        raise BadInput("herd drain: --undo goes with neither --for nor --wait")
    for_s = parse_duration(for_, "--for")
    names: list[str | None] = [*tenant] if tenant else [None]
    for name in names:
        with open_client(tenant=name) as client:
            show(_undo(client, worker) if undo else _drain(client, worker, for_s))
            if wait:
                _wait_until_drained(client, worker)
                show(f"{worker} is drained")


def _drain(client: "Client", worker: str, for_s: float | None) -> str:
    from llama_herd.cli.terminal import utc_text

    until_ms = client.drain(worker, for_s=for_s)
    end = f"herd drain --undo {worker}" if until_ms is None else f"{utc_text(until_ms)} UTC"
    return f"{worker} takes no jobs until {end}"


def _undo(client: "Client", worker: str) -> str:
    return f"{worker} takes jobs again" if client.undo_drain(worker) else f"{worker} was not drained"


def _wait_until_drained(client: "Client", worker: str) -> None:
    """Wait until the worker has no job of this tenant. Raises WorkerNotFound, BadInput."""
    from llama_herd.errors import WorkerNotFound
    from llama_herd.tasks.protocol.worker_status import DRAINING

    until_s = monotonic() + BEGIN_S
    while True:
        state = next((one.state for one in client.workers() if one.name == worker), None)
        if state is None:
            raise WorkerNotFound(f"{worker} has ended; others go on with its jobs")
        if state == "drained":
            return
        if state not in DRAINING and monotonic() > until_s:
            raise BadInput(
                f"{worker} is {state} after {BEGIN_S:.0f} s: it does not hear of this drain, or somebody "
                "has undone it. Fix: stop it by SIGTERM, which drains it, too"
            )
        sleep(POLL_S)
