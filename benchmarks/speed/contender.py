"""The parent's side of a measured engine: start it, ask it, and outlive it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from benchmarks.process_figures import cpu_s
from benchmarks.speed.cells import Cell
from benchmarks.speed.machine import type_name
from benchmarks.speed.peers import PEERS, ROOT

#: Seconds that a model may take to load, and a request to be answered.
TIMEOUT_S = 900


@dataclass(frozen=True)
class Contender:
    """An engine by the name of its row."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    in_peers: bool = False  # runs in the peers' environment
    loads_as_users_do: bool = True  # else its start and memory say nothing
    reads_any_file_alike: bool = False  # computes in one type: measured once a shape
    takes_long: bool = False  # is given prompts of many thousand tokens, too

    @property
    def is_there(self) -> bool:
        return not self.in_peers or (PEERS / "peers.json").exists()

    def takes(self, cell: Cell) -> bool:
        return self.takes_long or not cell.is_long

    def start(self, path: Path, threads: int, cells: Sequence[Cell]) -> "Running":
        """With room for these cells."""
        python = PEERS / "bin" / "python" if self.in_peers else Path(sys.executable)
        script = str(Path(__file__).with_name(f"{self.script}.py"))
        row_tokens = max(cell.most_tokens for cell in cells)
        room = (threads, row_tokens, sum(cell.cache_tokens for cell in cells))
        return Running(self, [str(python), script, str(path), *map(str, room), *self.arguments])


OURS = Contender("llama-herd", "ours", takes_long=True)
CONTENDERS = (
    OURS,
    Contender(
        f"transformers, {type_name()}",
        "transformers_peer",
        loads_as_users_do=False,
        reads_any_file_alike=True,
    ),
    Contender("llama.cpp", "llama_cpp_peer", in_peers=True, takes_long=True),
    Contender("llama.cpp, plain attention", "llama_cpp_peer", ("plain",), in_peers=True),
    Contender("OpenVINO", "openvino_peer", in_peers=True, takes_long=True),
)


class Running:
    """A contender with its model loaded. After its death every answer is None, and `death` says of what."""

    def __init__(self, contender: Contender, command: list[str]) -> None:
        self.contender = contender
        self.facts: dict[str, Any] = {}
        self.start_s: float | None = None  # from the start of the process to its first token
        self.peak_bytes = 0
        self.death = ""
        self._command = command

    def __enter__(self) -> Self:
        started_s = perf_counter()
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._stderr = TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        self.facts = self._answer().get("facts", {})
        self.start_s = None if self.death else perf_counter() - started_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def seconds(self, cell: Cell, steps: int) -> float | None:
        """Of a cell; the median of some steps."""
        if cell.num_texts:
            return self._ask({"texts": list(cell.row_tokens)})
        if not cell.lengths:
            return self._ask({"prefill": cell.num_tokens})
        return self._ask({"decode": list(cell.lengths), "steps": steps})

    def cpu_s(self) -> float:
        """Processor time that the process has used so far."""
        return 0.0 if self.death else cpu_s(self._process.pid)

    def _ask(self, request: dict[str, Any]) -> float | None:
        if self.death or self._process.stdin is None:
            return None
        with suppress(BrokenPipeError):  # its death is found where its answer is read
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        seconds: float | None = self._answer().get("seconds")
        return seconds

    def _answer(self) -> dict[str, Any]:
        watch = Timer(TIMEOUT_S, self._process.kill)
        watch.start()
        line = self._process.stdout.readline() if self._process.stdout else ""
        watch.cancel()
        if not line:
            self.death = self._cause()
            return {}
        answer: dict[str, Any] = json.loads(line)
        self.peak_bytes = max(self.peak_bytes, answer.get("peak_bytes", 0))
        return answer

    def _cause(self) -> str:
        status = self._process.wait()
        self._stderr.seek(0)
        last = self._stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        ending = signal.Signals(-status).name if status < 0 else f"exit {status}"
        return ": ".join([ending, *last])
