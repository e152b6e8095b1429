"""Ends a batch that runs somewhere else."""

from time import sleep

from llama_herd.tasks.client.client import Client

POLL_S = 0.2


def end_batch(client: Client, run_id: str) -> tuple[bool, int]:
    """Let a batch's command end, then cancel the jobs that it left or that a killed one has left.

    Returns whether the command ran, and how many jobs were left.
    """
    was_running = client.end_batch(run_id)
    while was_running and any(one.run_id == run_id and one.is_running for one in client.batches()):
        sleep(POLL_S)  # the report of a killed command expires, so this ends
    return was_running, client.cancel_jobs(run_id=run_id)
