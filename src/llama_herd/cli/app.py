"""`herd`: its commands, and the place where errors become one line for a person.

The modules of the commands import only typer and other light modules at the top, so `herd --help` answers at
once. Each command imports what it needs when it runs, and client commands never import torch.
"""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llama_herd.cli.acl import acl
from llama_herd.cli.batch.command import batch
from llama_herd.cli.cancel import cancel
from llama_herd.cli.dead import dead
from llama_herd.cli.demo.command import demo
from llama_herd.cli.doctor.command import doctor
from llama_herd.cli.fake_worker import fake_worker
from llama_herd.cli.gateway import gateway
from llama_herd.cli.generate import generate
from llama_herd.cli.health import health
from llama_herd.cli.inspect import inspect
from llama_herd.cli.jobs import jobs
from llama_herd.cli.kernels import kernels
from llama_herd.cli.keys import keys
from llama_herd.cli.pause import drain, pause, resume
from llama_herd.cli.pull import pull
from llama_herd.cli.purge import purge
from llama_herd.cli.redis import redis
from llama_herd.cli.settings import settings
from llama_herd.cli.status import status
from llama_herd.cli.terminal import HELP_OPTIONS, safe_output, say, speak_utf8
from llama_herd.cli.tokenize import tokenize
from llama_herd.cli.watch import watch
from llama_herd.cli.webhooks import webhooks
from llama_herd.cli.worker.command import worker
from llama_herd.errors import HerdError
from llama_herd.extras import own_version

#: Errors that a person can fix and then try again.
EXIT_BAD_INPUT = 2


class HerdGroup(TyperGroup):
    """Shows an error that was raised on purpose as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HerdError as error:
            say(str(error))
            raise typer.Exit(EXIT_BAD_INPUT) from None


app = typer.Typer(
    name="herd",
    cls=HerdGroup,
    help="Llama behind a queue: workers that batch, clients that stream every token.",
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    demo,
    worker,
    fake_worker,
    redis,
    gateway,
    generate,
    batch,
    watch,
    cancel,
    purge,
    status,
    jobs,
    pause,
    resume,
    drain,
    pull,
    inspect,
    tokenize,
    doctor,
    health,
    settings,
    acl,
):
    app.command()(command)
app.add_typer(dead, name="dead")
app.add_typer(keys, name="keys")
app.add_typer(webhooks, name="webhooks")
app.add_typer(kernels, name="kernels")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"llama-herd {own_version()}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def run_app() -> None:
    """The entry point."""
    speak_utf8()
    with safe_output():
        _check_folder()
        app()


def _check_folder() -> None:
    """Exit if the current folder was deleted: libraries would fail with errors that nobody understands."""
    try:
        os.getcwd()
    except OSError:
        print("herd: the current folder was deleted. Fix: cd to one that exists", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None
