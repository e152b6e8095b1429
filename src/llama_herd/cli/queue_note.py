"""A line on standard error about a job's queue, where something is wrong with it."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from llama_herd.errors import HerdError

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client


def tell_note(client: "Client", job_id: str) -> None:
    """Say that no worker serves a job's model, if so.

    Nothing is said of a job that does not exist yet, and nothing to producers and subscribers, who may not
    look at queues.
    """
    from llama_herd.cli.terminal import harmless

    with suppress(HerdError):
        if note := client.job(job_id).note:
            print(f"herd: job {job_id}: {harmless(note)}", file=sys.stderr)
