"""`herd demo`: everything in one terminal, with nothing to set up."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_herd.cli.terminal import say

if TYPE_CHECKING:
    from llama_herd.cli.demo.screen import DemoScreen
    from llama_herd.worker.settings import WorkerSettings


def demo(
    model: Annotated[
        Path | None,
        typer.Option(
            help="GGUF file, Hugging Face folder, or hf:OWNER/NAME; absent: HERD_MODEL, else the bundled one."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Stay, with two workers and a page for the browser, until Ctrl-C.")
    ] = False,
) -> None:
    """Show eight jobs side by side, with nothing to set up.

    They run through a Redis and a worker of the demo's own, first together, then one at a time. Nothing is
    left running. Exit code 0 when all jobs ended well.
    """
    from llama_herd.cli.environment import override_settings, read_settings
    from llama_herd.extras import need_extra
    from llama_herd.worker.loading.hub_model import with_model_here
    from llama_herd.worker.settings import WorkerSettings

    need_extra("worker", "herd demo")
    if web:
        need_extra("gateway", "herd demo --web")
    override_settings(model=model)
    named = read_settings(WorkerSettings)
    settings = with_model_here(named)
    if web:
        _serve_page(settings, as_json)
        return
    from llama_herd.cli.demo.demo import Demo
    from llama_herd.cli.demo.next_steps import next_steps
    from llama_herd.local.worker_process import WorkerDied

    screen = _open_screen(as_json)
    try:
        report = Demo(settings, screen).run()
    except (WorkerDied, TimeoutError) as error:
        say(str(error))
        raise typer.Exit(1) from None
    steps = next_steps(named)
    if as_json:
        print(json.dumps(report.to_dict() | {"next": [step._asdict() for step in steps]}))
    else:
        screen.show_report(report, steps)
    raise typer.Exit(report.exit_code)


def _serve_page(settings: "WorkerSettings", as_json: bool) -> None:
    """Serve the page for the browser until Ctrl-C."""
    from llama_herd.cli.demo.web_demo import WebDemo
    from llama_herd.local.worker_process import WorkerDied

    if as_json:
        raise typer.BadParameter("the page has no report. Fix: give --json or --web, not both")
    try:
        WebDemo(settings).run()
    except WorkerDied as error:
        say(str(error))
        raise typer.Exit(1) from None


def _open_screen(as_json: bool) -> "DemoScreen":
    from rich.console import Console

    from llama_herd.cli.demo.live_screen import LiveDemoScreen
    from llama_herd.cli.demo.screen import DemoScreen

    terminal = Console(highlight=False)
    if terminal.is_interactive and not as_json:
        return LiveDemoScreen(terminal)
    return DemoScreen(Console(highlight=False, color_system=None, force_terminal=False, quiet=as_json))
