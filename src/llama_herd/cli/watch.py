"""`herd watch`: a job's events from any point, for any number of readers."""

from typing import Annotated

import typer

from llama_herd.cli.connection import open_client


def watch(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    after: Annotated[int, typer.Option(min=0, help="Number of the last event already seen.")] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a job that does not exist yet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one event a line.")] = False,
) -> None:
    """Show a job's text so far, and the rest as it comes.

    Exit codes are those of generate.
    """
    from llama_herd.cli.transcript import Transcript, tell_of_queue

    transcript = Transcript("events" if as_json else "text")
    with open_client() as client:
        tell_of_queue(client, job)
        transcript.follow(client.watch(job, after=after, wait=wait))
    raise typer.Exit(transcript.exit_code)
