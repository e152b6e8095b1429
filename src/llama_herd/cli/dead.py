"""`herd dead`: jobs that were given up, and messages that could not be read."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.terminal import show, table_console, utc_text

if TYPE_CHECKING:
    from llama_herd.cli.folding_table import FoldingTable
    from llama_herd.tasks.client.dead_items import History
    from llama_herd.tasks.ledger.answers import DeadJob, DeadLetter

dead = typer.Typer(no_args_is_help=True, help="Jobs that were given up, and messages that could not be read.")

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a job or of a message, as herd dead list shows it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: Fields of a job that may hold its user's words.
_WORDS = ("prompt", "prompt_ids", "messages", "metadata", "sampling", "webhook", "webhook_secret")


@dead.command("list")
def list_dead(
    limit: Annotated[int, typer.Option(min=1, help="Most entries to show, the newest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List dead jobs and messages, and why they are dead."""
    with open_client() as client:
        found = client.dead(limit)
    if as_json:
        print(json.dumps([_facts(one) for one in found]))
    elif not found:
        print("no poisoned jobs and no dead letters")
    else:
        table_console().print(dead_view(found))


@dead.command("show")
def show_dead(
    item_id: Id,
    prompt: Annotated[bool, typer.Option("--prompt", help="Include the prompt, or the message.")] = False,
) -> None:
    """Show one as JSON: a job's record and events, or a message's origin."""
    with open_client() as client:
        letter = client.letter(item_id)
        found = _job_facts(client.history(item_id), prompt) if letter is None else _facts(letter)
        if letter is not None and prompt:
            found["raw"] = letter.raw.decode(errors="backslashreplace")
    print(json.dumps(found))


@dead.command("retry")
def retry_dead(item_id: Id) -> None:
    """Run a job again, or push a message back to its queue.

    The job gets a new id, which is printed.
    """
    with open_client() as client:
        retried = client.retry(item_id)
    show(retried.job_id or f"pushed back to {retried.queue}")


@dead.command("drop")
def drop_dead(item_id: Id) -> None:
    """Forget a message, or purge a job."""
    with open_client() as client:
        client.drop(item_id)
    print("dropped")


def _facts(one: "DeadJob | DeadLetter") -> dict[str, Any]:
    """The facts about it, without its content."""
    facts = asdict(one)
    facts.pop("raw", None)
    kind, own_id = ("message", "number") if "number" in facts else ("job", "job_id")
    return {"kind": kind, "id": facts.pop(own_id), **facts}


def dead_view(found: "Sequence[DeadJob | DeadLetter]") -> "FoldingTable":
    """The view of the dead, a line for each."""
    from llama_herd.cli.folding_table import FIGURE, NAME, WHOLE, FoldingTable

    names = dict.fromkeys(("worker", "queue", "task"), NAME)
    columns = {"id": WHOLE, "kind": WHOLE, "when (UTC)": WHOLE, "reason": NAME, "attempts": FIGURE, **names}
    others = ("reason", "attempts", "worker", "queue", "task", "task_id", "origin")

    def cells(facts: dict[str, Any]) -> list[str]:
        first = [facts["id"], facts["kind"], utc_text(facts["at_ms"])]
        return first + [str(facts.get(name) or "") for name in others]

    return FoldingTable(columns | {"task id": WHOLE, "origin": NAME}, map(cells, map(_facts, found)))


def _job_facts(history: "History", has_words: bool) -> dict[str, Any]:
    from pydantic_core import to_jsonable_python

    body = {name: value for name, value in history.body.items() if has_words or name not in _WORDS}
    events = [json.loads(event.to_json()) for event in history.events]
    record, moments = to_jsonable_python(history.record), to_jsonable_python(history.timeline)
    if not has_words:
        record.pop("metadata")
    return {"record": record, "timeline": moments, "job": body, "events": events}
