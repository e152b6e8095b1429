"""Where only PYTHONPATH leads to the code, and nothing is installed, every command runs as elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Runs all commands in one process, and prints each that ends otherwise than by an exit code.
SCRIPT = """
import json, sys, traceback
from importlib.metadata import PackageNotFoundError, distribution

try:
    distribution("llama-herd")
    sys.exit("llama-herd is installed here")
except PackageNotFoundError:
    pass

import click, typer.main
from typer.testing import CliRunner
from llama_herd.cli.app import app

def names(command, path=()):
    yield list(path)
    for name, inner in getattr(command, "commands", {}).items():
        yield from names(inner, (*path, name))

runs = [[*path, "--help"] for path in names(typer.main.get_command(app))]
for arguments in [*runs, ["--version"], ["settings"], ["doctor"], ["inspect"], ["tokenize", "a"]]:
    result = CliRunner().invoke(app, arguments)
    if result.exc_info and result.exc_info[0] is not SystemExit:
        traceback.print_exception(*result.exc_info)
        print("herd", *arguments)
import asyncio
import llama_herd.tasks.gateway.openapi, llama_herd.tasks.openai.response
from llama_herd.tasks.gateway.herd_routes import show_version
asyncio.run(show_version(None))
from llama_herd.extras import install_command
install_command("worker")
print(len(runs), "commands")
"""


@pytest.mark.program
def test_every_command_runs_without_an_installation(tmp_path: Path) -> None:
    for site in (Path(entry) for entry in sys.path if Path(entry).name == "site-packages"):
        for item in site.iterdir():
            link = tmp_path / item.name
            if "llama_herd" not in item.name and not link.exists():
                link.symlink_to(item)
    (tmp_path / "llama_herd").symlink_to(ROOT / "src" / "llama_herd")
    bare = {"PYTHONPATH": str(tmp_path), "HERD_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT],
        env={**os.environ, **bare, "HERD_REDIS_URL": "redis://127.0.0.1:1/0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.rpartition("\n")[0].split("\n")[:-1] == []
    assert int(done.stdout.split()[0]) > 20
