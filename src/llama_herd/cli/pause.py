"""`herd pause` and `herd resume`: whether workers take jobs of a queue."""

from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.job_options import EndsAfter, parse_duration
from llama_herd.cli.terminal import say, show
from llama_herd.errors import BadInput

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client

Queue = Annotated[str | None, typer.Argument(help="The queue, by its own name or that of its model.")]
Model = Annotated[str | None, typer.Option(help="Its model, in place of the queue.")]
Tenant = Annotated[str | None, typer.Option(help="Tenant of the queue; absent: HERD_TENANT.")]


def pause(
    queue: Queue = None,
    model: Model = None,
    for_: EndsAfter = None,
    tenant: Tenant = None,
) -> None:
    """Let no worker take another job of a queue. Jobs are still accepted and wait, and running ones go on."""
    from llama_herd.cli.terminal import utc_text

    for_s = parse_duration(for_, "--for")
    with open_client(tenant=tenant) as client:
        name = _model_of(queue, model)
        until_ms = client.pause(name, for_s=for_s)
        end = f"herd resume --model {name}" if until_ms is None else f"{utc_text(until_ms)} UTC"
        show(f"{name} is paused until {end}")
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
