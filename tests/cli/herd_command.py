"""`herd` as tests run it: here or as a process of its own, with no HERD_ variable but ours."""

import logging
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest import mock

import typer
from typer.testing import CliRunner, Result

from llama_herd.cli.app import app
from tests.local.forked_python import ForkedPython, start_piped

COMMAND = (sys.executable, "-m", "llama_herd")

#: Variables that say where Redis is, or change how a worker starts.
_OURS = ("HERD_", "CELERY_", "REDIS_URL")

#: All commands take a twentieth of a second to make, and the runner would make them for each call.
_made_once = mock.patch("typer.testing._get_command", cache(typer.main.get_command))


def environment(**variables: str) -> dict[str, str]:
    """What a command sees; one thread each, since tests share the cores, and no kernels of the user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return kept | {"HERD_THREADS": "1", "HERD_KERNELS_DIR": "/nowhere"} | variables


def start_herd(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a command; in a session of its own, as from another terminal.

    Its temporary files are in the folder too: one that is killed leaves them.
    """
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(TMPDIR=str(folder), **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def fork_herd(folder: Path, *arguments: str, **variables: str) -> ForkedPython:
    """As start_herd, but no new Python: for what a command does once it runs, in a fifth of the time."""
    env = environment(TMPDIR=str(folder), **variables)
    process = start_piped([COMMAND[-1], *arguments], env, folder)
    process.stdin.close()
    return process


def invoke(*arguments: str, stdin: str | bytes = "", **variables: str) -> Result:
    """Run a command in this process; what it changes in the environment and the log is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with _made_once, mock.patch.dict(os.environ, environment(**variables), clear=True):
        try:
            return CliRunner().invoke(app, arguments, input=stdin)
        finally:
            root.handlers[:] = handlers  # else they write into what typer has closed
            root.setLevel(level)
