"""`herd gateway` as a child process."""

import re
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.harness.patience import wait_until
from tests.cli.herd_command import COMMAND, environment
from tests.local.forked_python import start_forked

_ADDRESS = re.compile(r"herd: gateway at (https?://[^\s,]+)")


class GatewayProcess:
    """Listens at any free port, open to this machine; ready when entered. Its log is a file."""

    def __init__(self, redis_url: str, log_path: Path, **variables: str) -> None:
        self.log_path = log_path
        own = {"HERD_GATEWAY_PORT": "0", "HERD_GATEWAY_OPEN": "true"}
        own["HERD_GATEWAY_FILES"] = str(log_path.parent / "files")
        self._env = environment(HERD_REDIS_URL=redis_url, **{**own, **variables})

    def __enter__(self) -> Self:
        self.process = start_forked([COMMAND[-1], "gateway"], self._env, self.log_path, self.log_path.parent)
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
