"""`herd purge`: forget what a job was asked and what it said."""

from typing import Annotated

import typer

from llama_herd.errors import BadInput


def purge(
    job: Annotated[str | None, typer.Argument(help="Id of the job.")] = None,
    all_ended: Annotated[bool, typer.Option("--all-ended", help="All jobs that are over.")] = False,
) -> None:
    """Forget a job: prompt, text, result and messages.

    A job that waits is cancelled first; one that runs must be cancelled by you.
    """
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.settings import Settings
    from llama_herd.worker.local.environment import read

    if (job is None) != all_ended:
        raise BadInput("give the id of a job, or --all-ended, not both")
    with Client(settings=read(Settings)) as client:
        if job is None:
            print(f"{client.purge_ended()} jobs purged")
        else:
            client.purge(job)
            print("purged")
