"""A stand-in server as a process that tests start, kill and start again at the same address."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llama_herd.local.redis_server import END_WITH_PARENT


class StandIn:
    """A `tests.foreign_server`, ready when entered.

    with StandIn(model, tmp_path / "bodies.log", step_s=0.01) as server:
        server.url
    """

    def __init__(self, model: Path, log: Path, **options: object) -> None:
        """options: those of its command line."""
        self.model, self.log_path = model, log
        self.options = options
        self.port = 0
        self.num_starts = 0
        self.process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[Any]:
        """The bodies of all requests so far."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def prompts(self) -> list[list[int]]:
        """The ids of the requests for tokens, but for those that ask what the server can do."""
        bodies = [one for one in self.bodies if isinstance(one.get("prompt"), list)]
        return [one["prompt"] for one in bodies if one["prompt"] != [0]]

    def start(self) -> Self:
        """Start it; from the second time on at the port that it had."""
        options = [word for name, value in self.options.items() for word in _words(name, value)]
        paths = ["--model", str(self.model), "--log", str(self.log_path), "--port", str(self.port)]
        command = [sys.executable, "-m", "tests.foreign_server", *paths, *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=END_WITH_PARENT
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.num_starts += 1
        return self

    def kill(self) -> None:
        """Kill it at once (kill -9)."""
        self.process.kill()
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended."""
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()


def _words(name: str, value: object) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [option] if value is True else [option, str(value)]
