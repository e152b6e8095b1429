"""Break a herd of its own in every known way, and check that nothing is lost.

python -m tests.chaos.harness list
python -m tests.chaos.harness run kill=10 redis-kill
"""

import json
from typing import Annotated

import typer

from llama_herd.cli.app import HerdGroup
from llama_herd.cli.terminal import say, show
from llama_herd.errors import BadInput
from llama_herd.local.worker_process import WorkerDied
from tests.chaos.harness.faults.catalogue import FAULTS
from tests.chaos.harness.plan import SCHEDULES, ChaosPlan, planned_strikes
from tests.chaos.harness.run import run_chaos
from tests.chaos.harness.screen import progress_display, show_report

MAX_JOBS = 1_000_000
MAX_TOKENS = 4096
#: A week.
MAX_MINUTES = 10_080

app = typer.Typer(cls=HerdGroup, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.command("list")
def list_faults() -> None:
    """Show all faults and schedules."""
    for fault in FAULTS.values():
        show(f"{fault.name:<18}{fault.description}")
    show(f"\nschedules: {' '.join(sorted(path.stem for path in SCHEDULES.glob('*.json')))}")


@app.command("run")
def run_faults(
    faults: Annotated[
        list[str] | None, typer.Argument(help="Names of faults, such as kill or kill=10; absent: each once.")
    ] = None,
    schedule: Annotated[str, typer.Option(help="Name of a schedule of faults.")] = "",
    jobs: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Least number of jobs.")] = 100,
    tokens: Annotated[
        int, typer.Option(min=2, max=MAX_TOKENS, help="Most tokens per job; the least is half of it.")
    ] = 150,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the jobs and of the order of the faults.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Repeat for this many minutes; 0: once.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Break two workers and a Redis of its own that run the bundled model.

    Then read back all streams and results, and check every law. Exit code 0 when all hold, else 1.
    """
    if not minutes <= MAX_MINUTES:
        raise BadInput(f"--minutes {minutes}: must be at most {MAX_MINUTES}")
    plan = ChaosPlan(planned_strikes(faults or [], schedule), jobs, tokens, seed, minutes)
    try:
        with progress_display(is_quiet=as_json) as tell:
            report = run_chaos(plan, tell)
    except (WorkerDied, TimeoutError) as error:
        say(str(error))
        raise typer.Exit(1) from None
    print(json.dumps(report.to_dict())) if as_json else show_report(report)
    raise typer.Exit(report.exit_code)


if __name__ == "__main__":
    app()
