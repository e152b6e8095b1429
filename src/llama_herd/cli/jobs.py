"""`herd jobs`: the jobs that run or wait."""

from typing import Annotated, cast, get_args

import typer

from llama_herd.cli.connection import open_client
from llama_herd.cli.job_options import parse_duration
from llama_herd.cli.terminal import say, show, table_console

STATES = ("running", "queued", "unserved", "delayed")


def jobs(
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Jobs of this tenant; absent: HERD_TENANT.")] = None,
    state: Annotated[str | None, typer.Option(help=f"Only jobs in this state: {', '.join(STATES)}.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only jobs that have been due for this long: 90s, 5m, 2h."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most jobs to show.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a job.")] = False,
) -> None:
    """List the jobs that run or wait, the running ones first, then the oldest.

    Jobs that have ended are not listed: `herd status JOB` knows each by its id, `herd dead list` lists those
    that were given up.
    """
    from pydantic import TypeAdapter

    from llama_herd.cli.environment import override_settings
    from llama_herd.cli.status_view import jobs_view
    from llama_herd.errors import BadInput
    from llama_herd.tasks.client.job_status import ActiveState, JobStatus

    if state not in (None, *get_args(ActiveState)):
        raise BadInput(f"--state {state}: must be one of {', '.join(STATES)}. Ended jobs are not listed")
    older_s = None if older_than is None else parse_duration(older_than, "--older-than")
    override_settings(tenant=tenant, model_name=model)
    with open_client() as client:
        found = client.jobs(model=model, state=cast(ActiveState | None, state), older_s=older_s, limit=limit)
    if as_json:
        adapter = TypeAdapter(JobStatus)
        for job in found:
            show(adapter.dump_json(job).decode())
    elif not found:
        is_chosen = any(option is not None for option in (model, state, older_s))
        print("no such job runs or waits" if is_chosen else "no job runs or waits")
    else:
        table_console().print(jobs_view(found))
        if len(found) == limit:
            say(f"only the first {limit} are shown. Fix: --limit")
