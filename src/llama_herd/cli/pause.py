"""`herd pause`, `herd resume`, `herd drain`: whether workers take jobs of a queue, or a worker takes any."""

from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.job_options import EndsAfter, parse_duration
from llama_herd.cli.terminal import say, show, utc_text
from llama_herd.errors import BadInput, WorkerNotFound

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client

#: How often it is looked whether the worker is drained, and how long it may take to begin.
POLL_S, BEGIN_S = 0.2, 10.0

Queue = Annotated[str | None, typer.Argument(help="The queue, by its own name or that of its model.")]
Model = Annotated[str | None, typer.Option(help="Its model, in place of the queue.")]
Tenant = Annotated[str | None, typer.Option(help="Tenant of the queue; absent: HERD_TENANT.")]
Tenants = Annotated[
    list[str] | None,
    typer.Option(help="Tenant whose jobs it leaves; absent: HERD_TENANT. May be repeated."),
]


def pause(
    queue: Queue = None,
    model: Model = None,
    for_: EndsAfter = None,
    tenant: Tenant = None,
) -> None:
    """Let no worker take another job of a queue. Jobs are still accepted and wait, and running ones go on."""
    for_s = parse_duration(for_, "--for")
    with open_client(tenant=tenant) as client:
        name = _model_of(queue, model)
        until_ms = client.pause(name, for_s=for_s)
        show(f"{name} is paused until {_end_text(until_ms, f'herd resume --model {name}')}")
        _tell_unserved(client, name)


def resume(queue: Queue = None, model: Model = None, tenant: Tenant = None) -> None:
    """Let workers take jobs of a queue again."""
    with open_client(tenant=tenant) as client:
        name = _model_of(queue, model)
        show(f"{name} is resumed" if client.resume(name) else f"{name} was not paused")


def _model_of(queue: str | None, model: str | None) -> str:
    """The model that is meant. Raises BadInput unless exactly one is named."""
    from llama_herd.tasks.protocol.message import model_of
    from llama_herd.tasks.settings import Settings

    if (queue is None) == (model is None):
        raise BadInput("herd pause and herd resume need one of: the name of a queue, --model MODEL")
    return str(model) if queue is None else model_of(queue, Settings.read().tenant)


def _tell_unserved(client: "Client", model: str) -> None:
    """Say that nobody serves a paused model while others are served: its name may be mistyped."""
    from llama_herd.tasks.client.status_texts import unserved_note

    found = client.status()
    paused = found.queue_of(model)
    if found.served_models and not (paused and paused.is_served):
        say(unserved_note(model, None, found.served_models))


def drain(
    worker: Annotated[str, typer.Argument(help="Name of the worker, as herd status shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take jobs again.")] = False,
    for_: EndsAfter = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return once the worker has no job left.")] = False,
    tenant: Tenants = None,
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
    until_ms = client.drain(worker, for_s=for_s)
    return f"{worker} takes no jobs until {_end_text(until_ms, f'herd drain --undo {worker}')}"


def _end_text(until_ms: int | None, undo: str) -> str:
    """When it ends: at a time, or by the command that undoes it."""
    return undo if until_ms is None else f"{utc_text(until_ms)} UTC"


def _undo(client: "Client", worker: str) -> str:
    return f"{worker} takes jobs again" if client.undo_drain(worker) else f"{worker} was not drained"


def _wait_until_drained(client: "Client", worker: str) -> None:
    """Wait until the worker has no job of this tenant. Raises WorkerNotFound, BadInput."""
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
