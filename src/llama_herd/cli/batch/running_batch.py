"""A batch that runs somewhere else: watched, or ended."""

from time import sleep

from llama_herd.cli.batch.screen import BatchScreen
from llama_herd.cli.batch.summary import progress_line
from llama_herd.errors import JobNotFound
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.batch_status import BatchStatus

#: How often its status is looked up while it is watched.
WATCH_POLL_S = 1.0
#: How often to check whether it has ended.
END_POLL_S = 0.2


def watch_batch(client: Client, run_id: str, screen: BatchScreen) -> BatchStatus:
    """Show a batch until it ends, and return its last status. Raises JobNotFound if it does not report."""
    with screen:
        while True:
            status = _status(client, run_id)
            screen.show(status)
            if not status.is_running:
                screen.say(f"{status.state}: {progress_line(status)}")
                return status
            sleep(WATCH_POLL_S)


def _status(client: Client, run_id: str) -> BatchStatus:
    for status in client.batches():
        if status.run_id == run_id:
            return status
    raise JobNotFound(
        f"no batch {run_id}: it never ran, ended over an hour ago, or was killed. Fix if it was killed: run "
        "the same command again"
    )


def end_batch(client: Client, run_id: str) -> str:
    """Let a batch's command end, then cancel the jobs that it left or that a killed one has left.

    Returns what was done, for a person. Raises JobNotFound if nothing of the batch is left.
    """
    was_running = client.end_batch(run_id)
    while was_running and any(one.run_id == run_id and one.is_running for one in client.batches()):
        sleep(END_POLL_S)  # the report of a killed command expires, so this ends
    num_left = client.cancel_jobs(run_id=run_id)
    if not was_running and not num_left:
        raise JobNotFound(f"no batch {run_id} runs, and no job of it waits or runs")
    ended = f"batch {run_id} has ended; the same command runs its other rows" if was_running else ""
    left = f"{num_left:,} jobs cancelled" if num_left else ""
    return "; ".join(filter(None, (ended, left)))
