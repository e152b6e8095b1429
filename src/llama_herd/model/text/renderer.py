"""Renders chat templates in a helper process, so that a bad one can neither hang nor bloat this process."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.reading.quoted import quoted
from llama_herd.model.text.sandbox import Answer, Limits
from llama_herd.model.text.template_files import DEFAULT

#: For an interpreter to start on a busy machine.
START_S = 30.0

#: Bytes of a character in JSON at most.
JSON_BYTES = 12


class Helper:
    """A process that runs `sandbox`: a new interpreter, not a fork, so CUDA and held locks stay out of it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._connection, theirs = Pipe()
        with theirs:
            # A session of its own: Ctrl-C is for the worker, which still needs the helper while it drains.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "llama_herd.model.text.sandbox", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ask(self, request: object, timeout_s: float) -> Answer:
        """What the process answers; one that does not answer in time is ended."""
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            if self._connection.poll(timeout_s):
                most = JSON_BYTES * self._limits.max_chars + 1_000
                return Answer(*json.loads(self._connection.recv_bytes(most)))
        except (OSError, EOFError):
            return Answer("limit", self._cause_of_death())
        return Answer("limit", f"takes longer than {timeout_s:g} s")

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _cause_of_death(self) -> str:
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "broke off the connection to its process"
        if code == -signal.SIGPROF:
            return f"takes more than {self._limits.cpu_s:g} s of CPU time"
        return f"ended its process with code {code}"


class Renderer:
    """The templates of a model and the helper that renders them, for one thread at a time.

        renderer = Renderer({"default": "Hello {{ name }}"}, Limits())
        renderer.render("default", {"name": "herd"})

    The helper is started when it is first needed. One that went over a limit is replaced at once, so that
    who broke it waits for the next, and nobody else does.
    """

    def __init__(self, sources: Mapping[str, str], limits: Limits) -> None:
        self._sources = sources
        self._limits = limits
        self._helper: Helper | None = None

    def start(self) -> None:
        """Start the helper. Raises ModelFileError when it cannot compile a template."""
        name, started = self._start()
        if started.kind != "ready":
            self.close()
            which = "" if name == DEFAULT else f" {quoted(name)}"
            raise ModelFileError(f"the chat template{which} {_explained(started)}. Mend it or leave it out.")

    def render(self, name: str, variables: Mapping[str, object]) -> str:
        """The text. Raises GenerationError "template_error", which quotes nothing of the variables."""
        answer = self._start()[1] if self._helper is None else Answer("ready")
        if answer.kind == "ready":
            answer = self._ask(("render", name, variables), self._limits.wall_s)
            if self._helper is None:
                self._start()
        if answer.kind == "text":
            return answer.text
        raise GenerationError(ErrorCode.TEMPLATE_ERROR, f"messages: the chat template {_explained(answer)}")

    def close(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _start(self) -> tuple[str, Answer]:
        """Start a helper and give it the templates: what it says of one that fails, else of the last."""
        name = DEFAULT
        try:
            self._helper = Helper(self._limits)
        except OSError as error:
            return name, Answer("limit", f"cannot run, since no process could be started: {error.strerror}")
        started = self._ask(self._limits, START_S)
        if started.kind != "ready":
            return name, started
        for name, source in self._sources.items():
            started = self._ask(("compile", name, source), self._limits.wall_s)
            if started.kind != "ready":
                break
        return name, started

    def _ask(self, request: object, timeout_s: float) -> Answer:
        assert self._helper is not None
        answer = self._helper.ask(request, timeout_s)
        if answer.kind == "limit":
            self.close()
        return answer


def _explained(answer: Answer) -> str:
    """What the template did, in a text that can be printed and stored."""
    reason = answer.text.encode(errors="backslashreplace").decode()
    if answer.kind == "limit":
        return reason
    verb = "refuses them" if answer.kind == "refused" else "fails"
    return f"{verb}: {reason}" if reason else verb
