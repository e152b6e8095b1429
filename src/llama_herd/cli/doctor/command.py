"""`herd doctor`: what is ready on this machine and what is not, with the fixes."""

import json
from typing import Annotated

import typer

from llama_herd.cli.job_options import ModelFile
from llama_herd.cli.terminal import show

COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def doctor(
    model: ModelFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the machine, the settings, Redis and the model file.

    Of the model it says whether a worker here would serve it, by which kernels and in how much memory; herd
    inspect shows all of the file. Exit code 1 when something fails.
    """
    from llama_herd.cli.doctor.checkup import check_up
    from llama_herd.cli.environment import override_settings
    from llama_herd.extras import need_extra

    if model is not None:
        need_extra("worker", "herd doctor --model")
    override_settings(model=model)
    findings = []
    for finding in check_up():
        findings.append(finding)
        if not as_json:
            typer.secho(f"{finding.state:<4}", fg=COLOURS[finding.state], nl=False)
            show(f"  {finding.subject:<11}  {finding.detail}")
            if finding.fix:
                show(f"{'':<17}  fix: {finding.fix}")
    has_failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        print(json.dumps({"ok": not has_failed, "findings": [finding._asdict() for finding in findings]}))
    raise typer.Exit(int(has_failed))
