"""`herd jobs`: the jobs that run or wait, or have ended."""

from typing import Annotated, cast

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.job_options import parse_duration
from llama_herd.cli.terminal import say, show, table_console
from llama_herd.errors import BadInput

STATES = ("running", "queued", "unserved", "delayed", "ended", "done", "failed", "cancelled")


OlderThan = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only jobs that have been due for this long: 90s, 5m, 2h."),
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only jobs that ended within this time: 90s, 5m, 2h.")
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Only ended jobs with this note; may be repeated."),
]


def jobs(
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Jobs of this tenant; absent: HERD_TENANT.")] = None,
    state: Annotated[str | None, typer.Option(help=f"Only jobs in this state: {', '.join(STATES)}.")] = None,
    older_than: OlderThan = None,
    since: Since = None,
    metadata: Metadata = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most jobs to show.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a job.")] = False,
) -> None:
    """List the jobs that run or wait.

    The running ones come first, then the oldest. With --state ended, done, failed or cancelled: those that
    ended last, the newest first, rows of batches left out. `herd status JOB` tells what became of one.
    """
    from pydantic import TypeAdapter

    from llama_herd.cli.status_view import ended_jobs_view, jobs_view
    from llama_herd.tasks.client.job_list import ENDED, ListedState
    from llama_herd.tasks.client.job_status import JobStatus

    if state not in (None, *STATES):
        raise BadInput(f"--state {state}: must be one of {', '.join(STATES)}")
    older_s = parse_duration(older_than, "--older-than")
    since_s = parse_duration(since, "--since")
    notes = dict(map(_note, metadata)) if metadata else None
    with open_client(tenant=tenant, model_name=model) as client:
        found = client.jobs(
            model=model,
            state=cast(ListedState | None, state),
            older_s=older_s,
            since_s=since_s,
            metadata=notes,
            limit=limit,
        )
    if as_json:
        adapter = TypeAdapter(JobStatus)
        for job in found:
            show(adapter.dump_json(job).decode())
    elif not found:
        is_chosen = any(option is not None for option in (model, state, older_s))
        print("no such job" if is_chosen else "no job runs or waits")
    else:
        table_console().print((ended_jobs_view if state in ENDED else jobs_view)(found))
        if len(found) == limit:
            say(f"only the first {limit} are shown. Fix: --limit")


def _note(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise BadInput(f"--metadata {text}: must be NAME=VALUE, as in order=7")
    return name, value
