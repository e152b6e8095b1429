"""vLLM and llama-server as processes that tests start, kill and start again at the same address."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from benchmarks.peer import load_peer
from llama_herd.local.redis_server import END_WITH_PARENT, free_port
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.chaos.harness.patience import wait_until

PROGRAMS = Path(__file__).parent.parent.parent / ".venv-engines" / "bin"

#: vLLM takes half a minute to start on two cores that are free.
PATIENCE_S = 240.0


def needs(program: str) -> pytest.MarkDecorator:
    """Skips a test where the program is not installed."""
    is_there = (PROGRAMS / program).exists()
    return pytest.mark.skipif(not is_there, reason=f"{program} is not installed. Fix: make test-engines")


class EngineServer:
    """A server, ready when entered.

    with llama_server(tmp_path / "server.log", rows=8) as server:
        server.url
    """

    def __init__(
        self,
        engine: str,
        model: Path,
        log: Path,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """engine, model: as HERD_ENGINE and HERD_MODEL name them. The port is appended to the command."""
        self.engine, self.model, self.log_path = engine, model, log
        self.port = free_port()
        self._command = [*map(str, command), "--host", "127.0.0.1", "--port", str(self.port)]
        self._env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it, and do not wait until it is ready."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
        return self

    def wait_until_ready(self) -> Self:
        """Raises RuntimeError, with the end of the log, if it ends before."""
        wait_until(self._is_ready, f"{self.engine} ready", PATIENCE_S)
        return self

    def kill(self) -> None:
        """Kill it and its children at once, as if the machine was lost."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.engine} has ended: {self.log_path.read_text()[-2000:]}")
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self.start().wait_until_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()


def vllm(log: Path, rows: int, *options: str, model: Path | None = None) -> EngineServer:
    """vLLM with a folder, by default one of the bundled model that it gets beside the log."""
    folder = model or write_folder(log.parent / "tales")
    named = ("--served-model-name", folder.name, "--max-num-seqs", str(rows))
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command: list[str | Path] = [PROGRAMS / "vllm", "serve", folder, *named, *options]
    return EngineServer("vllm", folder, log, command, env)


def llama_server(log: Path, rows: int, *options: str, model: Path = BUNDLED_MODEL) -> EngineServer:
    """llama-server with a file, and 512 tokens for each row.

    One thread: several spin while they wait for each other, which costs much where other processes work.
    """
    shape = ("-np", str(rows), "-c", str(512 * rows), "-t", "1", "-tb", "1", "--metrics", "--no-webui")
    command: list[str | Path] = [PROGRAMS / "llama-server", "-m", model, *shape, *options]
    return EngineServer("llama-server", model, log, command)


def write_folder(folder: Path, weights: Path = BUNDLED_MODEL) -> Path:
    """A folder as transformers writes it: weights of a GGUF file, tokenizer of the bundled model."""
    from transformers import AutoTokenizer

    with GGUFModel.open(weights) as file:
        load_peer(file).save_pretrained(folder)
    read = AutoTokenizer.from_pretrained(BUNDLED_MODEL.parent, gguf_file=BUNDLED_MODEL.name)
    read.save_pretrained(folder)
    return folder
