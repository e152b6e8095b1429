"""`herd demo`: everything in one terminal, with nothing to set up."""

import asyncio
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.job_options import ModelFile
from llama_herd.cli.terminal import say
from llama_herd.extras import need_extra

if TYPE_CHECKING:
    from llama_herd.worker.settings import WorkerSettings


def demo(
    model: ModelFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Stay, with two workers and a page for the browser, until Ctrl-C.")
    ] = False,
) -> None:
    """Show eight jobs side by side, with nothing to set up.

    They run through a Redis and a worker of the demo's own, first together, then one at a time. Nothing is
    left running. Exit code 0 when all jobs ended well.
    """
    from llama_herd.cli.environment import read_settings
    from llama_herd.worker.loading.hub_model import with_model_here
    from llama_herd.worker.settings import WorkerSettings

    need_extra("worker", "herd demo")
    if web:
        need_extra("gateway", "herd demo --web")
    if web and as_json:
        raise typer.BadParameter("the page has no report. Fix: give --json or --web, not both")
    named = read_settings(WorkerSettings, model=model)
    settings = with_model_here(named)

    from rich.console import Console

    from llama_herd.cli.demo.demo import run_demo, serve_page
    from llama_herd.cli.demo.screen import DemoScreen
    from llama_herd.local.worker_process import WorkerDied

    try:
        if web:
            return asyncio.run(serve_page(settings))
        terminal = Console(highlight=False)
        is_live = terminal.is_interactive and not as_json
        plain = Console(highlight=False, color_system=None, force_terminal=False, quiet=as_json)
        screen = DemoScreen(terminal if is_live else plain, is_live=is_live)
        report = run_demo(settings, screen)
    except (WorkerDied, TimeoutError) as error:
        say(str(error))
        raise typer.Exit(1) from None
    steps = next_steps(named)
    if as_json:
        told = [{"command": command, "purpose": purpose} for command, purpose in steps.items()]
        print(json.dumps(report.to_dict() | {"next": told}))
    else:
        screen.show_report(report, steps)
    raise typer.Exit(report.exit_code)


def next_steps(settings: "WorkerSettings") -> dict[str, str]:
    """Commands to copy in the folder where the demo was started, each with what it is good for."""
    from llama_herd.ops.settings import BUNDLED_MODEL

    herd, prompt = _program(), '"Once upon a time"'
    file, name = "", ""
    if settings.model != BUNDLED_MODEL:
        file, name = f" --model {shlex.quote(str(settings.model))}", f" --model {settings.served_model}"
    return {
        f"{herd} generate --local{file} {prompt}": "one job in this process: no queue, no Redis",
        f"{herd} worker --with-redis{file}": "a worker that stays, with a Redis that ends with it",
        f"{herd} generate{name} {prompt}": "a job through the queue; from a second terminal",
        f"{herd} status{name} --watch": "workers, batch, KV cache and queue, once a second",
    }


def _program() -> str:
    """The command that calls this same `herd` from here."""
    own = Path(sys.executable).with_name("herd")
    found = shutil.which("herd")
    if found is not None and own.exists() and own.samefile(found):
        return "herd"
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m llama_herd"
    return shlex.quote(min(os.path.relpath(own), str(own), key=len))
