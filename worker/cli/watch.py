"""`herd watch`: a job's events from any point, for any number of readers."""

import sys
from contextlib import suppress
from typing import Annotated

import typer


def watch(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    after: Annotated[int, typer.Option(min=0, help="Number of the last event already seen.")] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a job that does not exist yet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one event a line.")] = False,
) -> None:
    """Show a job's text so far, and the rest as it comes.

    Exit codes are those of generate.
    """
    from llama_herd.errors import HerdError
    from llama_herd.tasks.client.client import Client
    from llama_herd.tasks.settings import Settings
    from llama_herd.worker.cli.transcript import Transcript
    from llama_herd.worker.local.environment import read
    from llama_herd.worker.local.terminal import harmless

    transcript = Transcript("events" if as_json else "text")
    with Client(settings=read(Settings)) as client:
        with suppress(HerdError):  # it may not exist yet, and a subscriber may not see it
            if note := client.job(job).note:
                print(f"herd: {harmless(note)}", file=sys.stderr)
        transcript.follow(client.stream(job, after=after, wait=wait))
    raise typer.Exit(transcript.exit_code)
