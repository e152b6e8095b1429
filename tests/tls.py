"""TLS before a redis-server that has none: certificates of our own, and a server that unwraps."""

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl command to make certificates"
)


@dataclass(frozen=True)
class Identity:
    """A self-signed certificate with its key; `file` holds both."""

    file: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Self:
        """One for the address `name`, by the openssl command."""
        key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
        names = f"subjectAltName=IP:{name}" if name[0].isdigit() else f"subjectAltName=DNS:{name}"
        kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        whose = ("-subj", f"/CN={name}", "-addext", names, "-keyout", key, "-out", certificate)
        subprocess.run(["openssl", "req", *kind, *whose], check=True, capture_output=True)
        both = folder / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        return cls(both)


class TlsFront:
    """Listens on a port of its own, speaks TLS there, and passes all on to a plain port."""

    def __init__(self, port: int, server: Identity, client: Identity | None = None) -> None:
        """`client`: whose certificate a client must show."""
        self._plain_port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(server.file)
        if client is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client.file)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                raw, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with (
            suppress(OSError),
            self._context.wrap_socket(raw, server_side=True) as outside,
            socket.create_connection(("127.0.0.1", self._plain_port)) as inside,
        ):
            threading.Thread(target=_pump, args=(inside, outside), daemon=True).start()
            _pump(outside, inside)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)
