"""Ends a batch that runs somewhere else."""

from time import sleep

from llama_herd.errors import JobNotFound
from llama_herd.tasks.client.client import Client

POLL_S = 0.2


def end_batch(client: Client, run_id: str) -> str:
    """Let a batch's command end, then cancel the jobs that it left or that a killed one has left.

    Returns what was done, for a person. Raises JobNotFound if nothing of the batch is left.
    """
    was_running = client.end_batch(run_id)
    while was_running and any(one.run_id == run_id and one.is_running for one in client.batches()):
        sleep(POLL_S)  # the report of a killed command expires, so this ends
    num_left = client.cancel_jobs(run_id=run_id)
    if not was_running and not num_left:
        raise JobNotFound(f"no batch {run_id} runs, and no job of it waits or runs")
    ended = f"batch {run_id} has ended; the same command runs its other rows" if was_running else ""
    left = f"{num_left:,} jobs cancelled" if num_left else ""
    return "; ".join(filter(None, (ended, left)))
