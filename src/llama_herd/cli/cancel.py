"""`herd cancel`: end a job early, or all jobs of a queue or a batch."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.terminal import show
from llama_herd.counted import counted
from llama_herd.errors import BadInput, JobNotFound

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client


Queue = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Cancel all jobs of this model that wait or run.")
]
Batch = Annotated[
    str | None, typer.Option(metavar="RUN", help="Cancel all jobs of this batch that wait or run.")
]


def cancel(
    job: Annotated[str | None, typer.Argument(help="Id of the job.")] = None,
    queue: Queue = None,
    batch: Batch = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Cancel a job, or all jobs of a queue or a batch.

    Their texts so far are kept.
    """
    if sum(given is not None for given in (job, queue, batch)) != 1:
        raise BadInput("herd cancel needs one of: the id of a job, --queue MODEL, --batch RUN")
    with open_client(model_name=queue) as client:
        show(_cancel(client, job) if job is not None else _cancel_all(client, queue, batch, yes))


def _cancel(client: "Client", job: str) -> str:
    """Cancel one job; say what has become of it. Raises JobNotFound."""
    from llama_herd.tasks.ledger.answers import Cancellation

    match client.cancel(job):
        case Cancellation.CANCELLED:
            return "cancelled"
        case Cancellation.ASKED:
            return "its worker will end it within a step"
        case Cancellation.FINISHED:
            return "had already ended"
        case Cancellation.UNKNOWN:
            raise JobNotFound.for_id(job)


def _cancel_all(client: "Client", model: str | None, run_id: str | None, is_sure: bool) -> str:
    """Say how many there are, ask, cancel. Raises BadInput if nobody can be asked."""
    from llama_herd.cli.batch.runner import end_batch

    whose = f"model {model}" if run_id is None else f"batch {run_id}"
    num_found = client.count_jobs(model=model, run_id=run_id)
    if not num_found:
        if run_id is None:
            client.cancel_jobs(model=model)  # messages of jobs that have ended may be left
        return f"no job of {whose} waits or runs"
    if not is_sure:
        jobs = f"{counted(num_found, 'job')} of {whose}"
        if not sys.stdin.isatty():
            raise BadInput(f"{jobs} would be cancelled. Fix: --yes cancels without asking")
        typer.confirm(f"Cancel {jobs}?", abort=True)
    if run_id is not None:
        return end_batch(client, run_id)
    return f"{counted(client.cancel_jobs(model=model), 'job')} cancelled"
