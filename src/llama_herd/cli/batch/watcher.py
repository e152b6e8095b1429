"""Shows a batch that runs somewhere else."""

from time import sleep

from llama_herd.cli.batch.screen import Screen
from llama_herd.cli.batch.summary import progress_line
from llama_herd.errors import JobNotFound
from llama_herd.tasks.batch_status import BatchStatus
from llama_herd.tasks.client.client import Client

POLL_S = 1.0


def watch(client: Client, run_id: str, screen: Screen) -> BatchStatus:
    """Show a batch until it ends, and return its last status. Raises JobNotFound if it does not report."""
    with screen:
        while True:
            status = _status(client, run_id)
            screen.show(status)
            if not status.is_running:
                screen.say(f"{status.state}: {progress_line(status)}")
                return status
            sleep(POLL_S)


def _status(client: Client, run_id: str) -> BatchStatus:
    for status in client.batches():
        if status.run_id == run_id:
            return status
    raise JobNotFound(
        f"no batch {run_id}: it never ran, ended over an hour ago, or was killed. Fix if it was killed: run "
        "the same command again"
    )
