"""Whatever is given to an option: the command does it, or says in one line what is wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from llama_herd.cli.app import app
from tests.cli.herd_command import invoke

pytestmark = pytest.mark.redis

#: They go on until they are ended; what they read are settings, which have a test of their own.
SERVERS = ("demo", "worker", "fake-worker", "redis", "gateway", "webhooks listen")
#: It looks at the whole machine each time.
SLOW = ("doctor",)
ODD = ("", "a\nb", "x" * 5000, "9" * 5000, "-1")
#: Without these a command would take no other option.
ALWAYS = {
    "batch": ["-o", "out.jsonl"],
    "pause": ["--model", "tales"],
    "resume": ["--model", "tales"],
}
#: For arguments that any word will not do for.
GIVEN = {"input": "in.txt"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
    for name, one in (inner or {}).items():
        yield from commands(one, (*path, name))


COMMANDS = {name: one for name, one in commands(typer.main.get_command(app)) if name not in SERVERS + SLOW}


def lines(name: str) -> Iterator[list[str]]:
    """A command with each odd value of each option and argument."""
    params = COMMANDS[name].params
    for param in params:
        for odd in () if getattr(param, "is_flag", False) else ODD:
            is_option = param.param_type_name == "option"
            own = [f"{max(param.opts, key=len)}={odd}"] if is_option else []
            places = [one for one in params if one.param_type_name == "argument"]
            needed = [one for one in places if one is param or one.required or one.name == "input"]
            given = [odd if one is param else GIVEN.get(one.name, "xx") for one in needed]
            always = [] if {*ALWAYS.get(name, [])} & {*param.opts} else ALWAYS.get(name, [])
            yield [*name.split(), *always, *own, *(["--", *given] if given else [])]


@pytest.mark.parametrize("name", [name for name in COMMANDS if any(lines(name))])
def test_a_command_ends_with_a_line_at_most(
    name: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("xx\n")
    for line in lines(name):
        # No job is accepted, which would wait for a worker.
        done = invoke(*line, HERD_REDIS_URL=redis_url, HF_HUB_OFFLINE="1", HERD_MAX_PROMPT_BYTES="1")
        assert isinstance(done.exception, SystemExit | None), line
        assert done.exit_code in (0, 1, 2), line
        told = done.stderr.splitlines()
        assert len(told) < 2 or done.exit_code < 2 or told[0].startswith("Usage: "), line
        assert len(done.stderr) < 12_000, line[:2]
