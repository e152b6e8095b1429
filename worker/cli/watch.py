"""`herd watch`: a job's events from any point, for as many readers as there are."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from llama_herd.tasks.client import Client


def watch(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    after: Annotated[int, typer.Option(min=0, help="Number of the last event already seen.")] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a job that does not exist yet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one event a line.")] = False,
) -> None:
    """Show a job's text, what there is and what comes.

    Exit code as that of generate.
    """
    from llama_herd.tasks.client import Client
    from llama_herd.tasks.settings import Settings
    from llama_herd.worker.cli.environment import read
    from llama_herd.worker.cli.transcript import Transcript

    transcript = Transcript("events" if as_json else "text")
    with Client(settings=read(Settings)) as client:
        if not wait:
            _check_exists(client, job)
        transcript.follow(client.stream(job, after=after))
    raise typer.Exit(transcript.exit_code)


def _check_exists(client: "Client", job_id: str) -> None:
    """Raise JobNotFound unless the job is there now."""
    with suppress(TimeoutError):  # it is there, and has said nothing yet
        next(client.stream(job_id, timeout_s=0), None)
