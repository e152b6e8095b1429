"""`herd status`: the queues, the workers and the batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.connection import may_come_back, open_client
from llama_herd.cli.terminal import say, show, table_console
from llama_herd.errors import RedisUnavailable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from llama_herd.tasks.client.job_status import JobStatus
    from llama_herd.tasks.client.tenant_status import Status


Job = Annotated[str | None, typer.Argument(help="Id of a job: show what has become of it instead.")]
Model = Annotated[str | None, typer.Option(help="Show this model's queue and workers only; absent: all.")]


def status(
    job: Job = None,
    model: Model = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Show all queues and the workers that are up, or one job.

    Queues that no worker serves are shown, too.
    """
    with (
        open_client(model_name=model) as client,
        suppress(KeyboardInterrupt),
        _display(as_json, model) as show,
    ):
        look = partial(client.job, job) if job else client.status
        show(look())
        while watch:
            sleep(1.0)  # as often as workers report
            with _outages_told():
                show(look())


@contextmanager
def _outages_told() -> Iterator[None]:
    """Say that Redis is away, if it may come back, and go on."""
    try:
        yield
    except RedisUnavailable as error:
        if not may_come_back(error):
            raise
        say(str(error))


@contextmanager
def _display(as_json: bool, model: str | None) -> "Iterator[Callable[[Status | JobStatus], None]]":
    """Yield what shows a status: as a line of JSON, in place of the last one on a terminal, else below it.

    Of a tenant it shows one model's part, if there is a model.
    """
    from pydantic import TypeAdapter
    from rich.live import Live

    from llama_herd.cli.status_view import job_view, only_model, status_view
    from llama_herd.tasks.client.job_status import JobStatus
    from llama_herd.tasks.client.tenant_status import Status

    def shown(found: Status | JobStatus) -> "Group | Table":
        return job_view(found) if isinstance(found, JobStatus) else status_view(found, model)

    def part(found: Status | JobStatus) -> Status | JobStatus:
        return found if isinstance(found, JobStatus) else only_model(found, model)

    console = table_console()
    if as_json:
        adapter = TypeAdapter[Status | JobStatus](Status | JobStatus)
        yield lambda found: show(adapter.dump_json(part(found)).decode())
    elif console.is_interactive:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda found: live.update(shown(found), refresh=True)
    else:
        yield lambda found: console.print(shown(found))
