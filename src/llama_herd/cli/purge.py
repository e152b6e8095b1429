"""`herd purge`: delete a job's prompt and output from Redis."""

from typing import Annotated

import typer

from llama_herd.cli.connection import denials_fixed_by, open_client
from llama_herd.cli.terminal import show
from llama_herd.counted import counted
from llama_herd.errors import BadInput

#: The fix where the user of Redis may not list jobs.
BE_ADMINISTRATOR = (
    "come as a Redis user of your own, since no role of herd acl has SCAN, or purge job by job: see "
    "docs/security.md"
)

Search = Annotated[bool, typer.Option("--search", help="Read the queue for a message without a record.")]


def purge(
    job: Annotated[str | None, typer.Argument(help="Id of the job.")] = None,
    all_ended: Annotated[bool, typer.Option("--all-ended", help="Purge all jobs that have ended.")] = False,
    search: Search = False,
) -> None:
    """Delete a job from Redis: prompt, text, result and messages.

    A waiting job is cancelled first; a running one must be cancelled by you. A message that was not sent by
    our client, and that no worker has claimed, is found by --search, which reads the whole queue.
    """
    if (job is None) != all_ended:
        raise BadInput("herd purge needs either the id of a job or --all-ended")
    with open_client() as client:
        if job is None:
            with denials_fixed_by(BE_ADMINISTRATOR):
                show(f"{counted(client.purge_ended(), 'job')} purged")
        else:
            client.purge(job, search=search)
            print("purged")
