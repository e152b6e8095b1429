"""Helper processes that work under limits: bad work can neither hang nor bloat the process that asks.

Requests come as JSON over a connection, the limits first. Each gets an Answer.
"""

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError

#: Longest time for an interpreter to start on a busy machine.
START_S = 30.0

#: Bytes of a character in JSON at most.
JSON_BYTES = 12


class HelperLimits(NamedTuple):
    """Limits of one request in time, memory and text."""

    cpu_s: float = 0.25
    wall_s: float = 60.0  # far more: on a busy machine a helper may stand still for long, and is not at fault
    memory_bytes: int = 64 << 20  # beyond what the process has when it starts
    max_chars: int = 1 << 20  # of the text that is answered


DEFAULT_LIMITS = HelperLimits()


class HelperAnswer(NamedTuple):
    """How a request ended: `text` is what was made, else the reason, which quotes nothing of the request.

    limit: it takes too much. late: there was no answer in time, which a busy machine may have caused.
    """

    kind: Literal["ready", "text", "refused", "failed", "limit", "late"]
    text: str = ""

    @property
    def is_over_limit(self) -> bool:
        """Whether the helper is of no use any more."""
        return self.kind in ("limit", "late")

    def error(self, code: ErrorCode, message: str) -> GenerationError:
        """The error of a job that asked for it: by this code, unless it was late, which may pass."""
        if self.kind == "late":
            return GenerationError(ErrorCode.PREPARATION_ERROR, message, retriable=True)
        return GenerationError(code, message)


class Helper:
    """A program in a process of its own, for one thread at a time.

    The process is started when it is first asked; one that went over a limit is ended, and the next request
    starts another. It is a new interpreter, not a fork, so CUDA and held locks stay out of it.
    """

    def __init__(self, program: str, limits: HelperLimits) -> None:
        """program: a module that calls `answer_requests`."""
        self._program = program
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> HelperAnswer:
        """Start the process with its limits, unless it runs: "ready", or what is in the way."""
        if self.is_running:
            return HelperAnswer("ready")
        self._connection, theirs = Pipe()
        _limit_sending(self._connection, self._limits.wall_s)
        with theirs:
            try:
                # A session of its own: Ctrl-C is for the worker, which still needs it while it drains.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._program, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                self._connection.close()
                problem = f"cannot be used, since no process could be started: {error.strerror}"
                return HelperAnswer("late", problem)
        return self._answer(self._process, self._limits, START_S)

    def ask(self, request: object) -> HelperAnswer:
        """Send a request and return the answer."""
        started = self.start()
        if self._process is None or started.kind != "ready":
            return started
        return self._answer(self._process, request, self._limits.wall_s)

    def close(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answer(self, process: subprocess.Popen[bytes], request: object, timeout_s: float) -> HelperAnswer:
        """The answer to a request; a process that gives none in time, or goes over a limit, is ended."""
        answer = HelperAnswer("late", f"takes longer than {timeout_s:g} s")
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it had all
                self._connection.send_bytes(json.dumps(request).encode())
            if self._connection.poll(timeout_s):
                most = JSON_BYTES * self._limits.max_chars + 1_000
                answer = HelperAnswer(*json.loads(self._connection.recv_bytes(most)))
        except BlockingIOError:
            pass  # it has read nothing for so long
        except (OSError, EOFError):
            answer = HelperAnswer("limit", self._cause_of_death(process))
        if answer.is_over_limit:
            self.close()
        return answer

    def _cause_of_death(self, process: subprocess.Popen[bytes]) -> str:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "broke off the connection to its process"
        if code == -signal.SIGPROF:
            return f"takes more than {self._limits.cpu_s:g} s of CPU time"
        if code == -signal.SIGABRT:  # how native code says that it got no memory
            return f"needs more than {self._limits.memory_bytes:,} bytes of memory"
        return f"ended its process with code {code}"


def _limit_sending(connection: Connection, seconds: float) -> None:
    """Raise BlockingIOError where a send waits longer, as for a process that is stopped."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class _Closable(Protocol):
    def close(self) -> None: ...


H = TypeVar("H", bound=_Closable)


class HelperPool(Generic[H]):
    """Lends each helper to one caller at a time; further callers are served as they came.

    Any thread may call. So a thread has one helper at most, and where there are fewer helpers than threads,
    each goes before the second call of another.
    """

    def __init__(self, helpers: Iterable[H]) -> None:
        """`helpers` start what they need when they are first used; the last one is used first."""
        self._lock = Lock()
        self._idle = list(helpers)
        self._waiting = deque[SimpleQueue[H]]()
        self._is_closed = False

    @contextmanager
    def lent(self) -> Iterator[H]:
        """A helper of one's own within the block: the one that was used last, so that few are started."""
        turn = SimpleQueue[H]()
        with self._lock:
            if self._idle:
                turn.put(self._idle.pop())
            else:
                self._waiting.append(turn)
        helper = turn.get()
        try:
            yield helper
        finally:
            with self._lock:  # to who waits longest: who gives back cannot take again before
                if self._waiting:
                    self._waiting.popleft().put(helper)
                else:
                    self._idle.append(helper)
                    if self._is_closed:
                        helper.close()

    def close(self) -> None:
        """End the helpers, each as soon as it is idle."""
        with self._lock:
            self._is_closed = True
            for helper in self._idle:
                helper.close()


def answer_requests(start: Callable[[HelperLimits], Callable[..., HelperAnswer]]) -> None:
    """The program of a helper: take the limits, then answer requests until the other side is gone.

    `start(limits)` gives what answers a request, by its parts. Beyond its CPU time the kernel ends this
    process.
    """
    with suppress(EOFError), Connection(int(sys.argv[1])) as connection:
        limits = HelperLimits(*json.loads(connection.recv_bytes()))
        answer = start(limits)
        num_pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = num_pages * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold prompts
        found = HelperAnswer("ready")
        while not found.is_over_limit:  # after that it may stand in the middle of a request
            connection.send_bytes(json.dumps(found).encode())
            try:
                request: list[Any] = json.loads(connection.recv_bytes())
                signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
                found = answer(*request)
            except MemoryError:
                found = HelperAnswer("limit", f"needs more than {limits.memory_bytes:,} bytes of memory")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(json.dumps(found).encode())
