"""A script in one process that workers in others ask: a line of JSON each way, over a Unix socket."""

import json
import socket
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import Any, Self

from llama_herd.errors import GenerationError
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.testing.answer import Answer
from llama_herd.testing.script import AskedJob, Script


class ScriptServer(ThreadingMixIn, UnixStreamServer):
    """Answers by a script, on threads of its own, as long as the block lasts."""

    daemon_threads = True  # functions of the script may wait for ever

    def __init__(self, script: Script, path: Path) -> None:
        super().__init__(str(path), _Question)
        self.script = script
        self._thread = Thread(target=self.serve_forever, args=(0.01,), name="script", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Question(StreamRequestHandler):
    server: ScriptServer

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line.endswith(b"\n"):
            return  # the worker that asked is dead, as it may be below
        fields = json.loads(line)
        asked = AskedJob(**{**fields, "job": GenerationJob.model_validate(fields["job"])})
        try:
            reply: dict[str, Any] = {"answer": self.server.script.reply_to(asked).to_dict()}
        except GenerationError as error:
            reply = {"code": error.code, "message": error.message}
        with suppress(BrokenPipeError):
            self.wfile.write(json.dumps(reply).encode() + b"\n")


class AskedScript:
    """The script behind a socket, as a worker asks it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, asked: AskedJob) -> Answer:
        """The answer for a job. Raises GenerationError."""
        fields = {"id": asked.id, "tenant": asked.tenant, "model": asked.model}
        job = asked.job.model_dump(mode="json", exclude_unset=True)
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self._path))
            link.sendall(json.dumps({**fields, "job": job}).encode() + b"\n")
            with link.makefile() as lines:
                reply = json.loads(lines.readline())
        if "answer" not in reply:
            raise GenerationError(reply["code"], reply["message"])
        return Answer.from_dict(reply["answer"])
