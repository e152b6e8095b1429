"""`herd batch` over files in a folder, as tests run it."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import Result

from tests.cli.herd_command import COMMAND, environment, fork_herd, invoke, start_herd
from tests.local.forked_python import ForkedPython
from tests.terminal import Terminal

Answer = dict[str, Any]


@dataclass(frozen=True)
class BatchCommand:
    """`in.jsonl` and `out.jsonl` in a folder, and a Redis."""

    folder: Path
    url: str

    @property
    def output(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def errors(self) -> Path:
        return self.folder / "out.jsonl.errors.jsonl"

    def write(self, rows: Iterable[Mapping[str, Any] | str]) -> None:
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (self.folder / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def run(self, *options: str) -> Result:
        """In this process, to its end."""
        files = (str(self.folder / "in.jsonl"), "-o", str(self.output))
        return invoke("batch", *files, *options, HERD_REDIS_URL=self.url)

    def start(self, *options: str, **variables: str) -> ForkedPython:
        """In a process of its own."""
        return fork_herd(self.folder, *self._arguments(*options), HERD_REDIS_URL=self.url, **variables)

    def start_anew(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        """The same, as a new Python."""
        return start_herd(self.folder, *self._arguments(*options), HERD_REDIS_URL=self.url, **variables)

    def start_on(self, terminal: Terminal, *options: str, **variables: str) -> ForkedPython:
        """With somebody at it."""
        command = [COMMAND[-1], *self._arguments(*options)]
        env = terminal.environment(environment(HERD_REDIS_URL=self.url, **variables))
        with terminal.streams() as streams:
            return ForkedPython(command, env, self.folder, *streams)

    def _arguments(self, *options: str) -> tuple[str, ...]:
        return ("batch", "in.jsonl", "-o", "out.jsonl", *options)

    def answers(self) -> list[Answer]:
        return read(self.output)

    def failures(self) -> list[Answer]:
        return read(self.errors)

    def names(self) -> list[str]:
        return [answer["custom_id"] for answer in self.answers()]

    def texts(self) -> dict[str, str]:
        return {
            answer["custom_id"]: answer["response"]["body"]["choices"][0]["text"] for answer in self.answers()
        }

    @property
    def run_id(self) -> str:
        found: str = json.loads((self.folder / "out.jsonl.run").read_text())["run_id"]
        return found


def read(path: Path) -> list[Answer]:
    """The whole lines: the last one may be under way, and then the command goes on."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def rows(num: int, name: Callable[[int], str] = "c{}".format) -> list[Answer]:
    """Lines in OpenAI's form; the prompt of each is its name."""
    line = {"method": "POST", "url": "/v1/completions"}
    return [line | {"custom_id": name(n), "body": {"prompt": name(n), "max_tokens": 8}} for n in range(num)]
