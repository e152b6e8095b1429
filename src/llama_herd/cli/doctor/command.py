"""`herd doctor`: what is ready on this machine and what is not, with the fixes."""

import json
from typing import Annotated

import typer

from llama_herd.cli.job_options import ModelFile
from llama_herd.cli.terminal import show
from llama_herd.extras import need_extra

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    model: ModelFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the machine, the settings, Redis and the model file.

    Of the model it says whether a worker here would serve it, by which kernels and in how much memory; herd
    inspect shows all of the file. Exit code 1 when something fails.
    """
    from rich.console import Console

    from llama_herd.cli.doctor.checkup import check_up
    from llama_herd.cli.environment import override_settings

    if model is not None:
        need_extra("worker", "herd doctor --model")
    override_settings(model=model)
    console = Console()
    findings = []
    for finding in check_up():
        findings.append(finding)
        if not as_json:
            console.print(f"{finding.state:<4}", style=STYLES[finding.state], end="")
            show(f"  {finding.subject:<11}  {finding.detail}")
            if finding.fix:
                show(f"{'':<17}  fix: {finding.fix}")
    has_failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        print(json.dumps({"ok": not has_failed, "findings": [finding._asdict() for finding in findings]}))
    raise typer.Exit(int(has_failed))
