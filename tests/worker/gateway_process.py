"""`herd gateway` as a child process."""

import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.local.redis_server import END_WITH_PARENT
from tests.worker.herd_command import COMMAND, environment

_ADDRESS = re.compile(r"herd: gateway at (https?://[^\s,]+)")


class GatewayProcess:
    """Listens at any free port; ready when entered. Its log is a file."""

    def __init__(self, redis_url: str, log_path: Path, **variables: str) -> None:
        self.log_path = log_path
        self._env = environment(HERD_REDIS_URL=redis_url, **{"HERD_GATEWAY_PORT": "0", **variables})

    def __enter__(self) -> Self:
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "gateway"],
                env=self._env,
                cwd=self.log_path.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
        wait_until(lambda: _ADDRESS.search(self.log) or self.process.poll() is not None, "the gateway is up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def url(self) -> str:
        found = _ADDRESS.search(self.log)
        assert found, self.log
        return found[1]
