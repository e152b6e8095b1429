"""`herd status`: the workers and the queue."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from llama_herd.tasks.client.core import Status
    from llama_herd.tasks.worker_status import WorkerStatus

#: Workers report once a second.
REFRESH_S = 1.0

#: Width of a table that goes to a file or a pipe: wide enough to cut off nothing.
FILE_WIDTH = 200


def status(
    model: Annotated[
        str | None, typer.Option(help="Model whose queue to show; absent: HERD_MODEL_NAME.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the workers that are up and how full the queue is."""
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.settings import Settings
    from llama_herd.worker.local.environment import override, read

    override(model_name=model)
    with Client(settings=read(Settings)) as client, suppress(KeyboardInterrupt), _display(as_json) as show:
        show(client.status())
        while watch:
            sleep(REFRESH_S)
            show(client.status())


@contextmanager
def _display(as_json: bool) -> "Iterator[Callable[[Status], None]]":
    """How to show a status: as a line of JSON, on a terminal in place of the last one, or below it."""
    from pydantic import TypeAdapter
    from rich.console import Console
    from rich.live import Live

    from llama_herd.tasks.client.core import Status

    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False, markup=False)
    if as_json:
        adapter = TypeAdapter(Status)
        yield lambda found: print(adapter.dump_json(found).decode(), flush=True)
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda found: live.update(_view(found), refresh=True)
    else:
        yield lambda found: console.print(_view(found))


def _view(found: "Status") -> "Group":
    from rich.console import Group

    from llama_herd.tasks.worker_status import TROUBLE
    from llama_herd.worker.batch.summary import progress_line

    queue = f"{found.depth} messages in {found.queue}"
    jobs = f"{found.pending} jobs waiting, {found.running} running"
    workers = _table(found.workers) if found.workers else "no worker is up"
    running = (batch for batch in found.batches if batch.is_running)
    batches = (f"batch {batch.run_id} of {batch.input_name}: {progress_line(batch)}" for batch in running)
    troubles = (
        f"{worker.name} is {worker.shown_state}: {TROUBLE[worker.state]}"
        for worker in found.workers
        if worker.state in TROUBLE
    )
    complaints = dict.fromkeys(worker.complaint for worker in found.workers if worker.complaint)
    return Group(f"{queue}; {jobs}", *batches, "", workers, *troubles, *complaints)


def _table(workers: "list[WorkerStatus]") -> "Table":
    from rich.table import Table

    table = Table("worker", "state", "model", "device", box=None, header_style="dim", pad_edge=False)
    for name in ("running", "waiting", "KV cache", "prefix hits", "steps"):
        table.add_column(name, justify="right")
    for worker in sorted(workers, key=lambda worker: worker.name):
        table.add_row(
            worker.name,
            worker.shown_state,
            worker.model,
            worker.device,
            f"{worker.running}/{worker.slots}",
            f"{worker.waiting}",
            f"{worker.kv_cache_usage:.0%}",
            f"{worker.prefix_hit_rate:.0%}",
            f"{worker.steps:,}",
        )
    return table
