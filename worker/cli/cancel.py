"""`herd cancel`: end a job early."""

from typing import Annotated

import typer


def cancel(job: Annotated[str, typer.Argument(help="Id of the job.")]) -> None:
    """Cancel a job; its text so far is kept."""
    from llama_herd.errors import JobNotFound
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.ledger.answers import Cancellation
    from llama_herd.tasks.settings import Settings
    from llama_herd.worker.local.environment import read

    with Client(settings=read(Settings)) as client:
        answer = client.cancel(job)
    match answer:
        case Cancellation.UNKNOWN:
            raise JobNotFound.of(job)
        case Cancellation.CANCELLED:
            print("cancelled")
        case Cancellation.ASKED:
            print("its worker will end it within a step")
        case Cancellation.FINISHED:
            print("had already ended")
