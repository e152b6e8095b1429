"""A hub of Hugging Face on this machine: as much of its protocol as huggingface_hub asks for.

with HubServer({"owner/tiny": {"tiny-Q8_0.gguf": b"..."}}) as hub:
    subprocess.run([..., "pull", "owner/tiny"], env=environment(**hub.variables(tmp_path)))
"""

import hashlib
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

#: Large files are in LFS and have a SHA-256; small ones have git's SHA-1.
LARGE = (".gguf", ".safetensors")

RESOLVED = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
LISTED = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/revision/[^/]+)?")


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class HubServer:
    """Serves repositories: the bytes of each file by name."""

    repos: dict[str, dict[str, bytes]]
    token: str = ""  # that is asked for of everybody
    #: Bytes after which the connection breaks while a file is sent, once.
    breaks: dict[str, int] = field(default_factory=dict)
    #: Bytes after which no more of a file comes, until the server is closed.
    stalls: dict[str, int] = field(default_factory=dict)
    #: Files that come with other bytes than the hub says.
    altered: set[str] = field(default_factory=set)
    #: What is added to the list of a repository's files, or takes the place of what stands there.
    forged: dict[str, Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.is_closing = threading.Event()
        self._servers = [_Server(self), _Server(self)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.is_closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        return self._servers[0].url

    @property
    def store_url(self) -> str:
        """Where files lie: another origin, as with the real hub."""
        return self._servers[1].url

    def variables(self, cache: Path) -> dict[str, str]:
        """The environment of a process that asks this hub, with a cache of its own and no proxy."""
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), "")
        return {
            **proxies,
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_OFFLINE": "",
            "HF_TOKEN": "",
        }

    def files(self, repo: str) -> dict[str, bytes]:
        return self.repos[repo]

    def commit(self, repo: str) -> str:
        files = hashlib.sha1()
        for name, content in sorted(self.repos[repo].items()):
            files.update(f"{name} {len(content)} ".encode() + content)
        return files.hexdigest()

    def listed(self, repo: str) -> dict[str, Any]:
        siblings = [_sibling(name, content) for name, content in self.repos[repo].items()]
        listed = {"id": repo, "sha": self.commit(repo), "siblings": siblings}
        return listed | self.forged

    def ranges(self, name: str) -> list[str | None]:
        """The ranges of a file that were asked for, in order; None: all of it."""
        return [one.range for one in self.asked if one.method == "GET" and one.path.endswith(f"/{name}")]


def digest(name: str, content: bytes) -> str:
    """The checksum by which the hub calls a file."""
    if name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    blob_id = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sibling = {"rfilename": name, "size": len(content), "blobId": blob_id}
    if name.endswith(LARGE):
        sibling["lfs"] = {"size": len(content), "sha256": digest(name, content), "pointerSize": 134}
    return sibling


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: HubServer) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that were killed."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)  # of a proxy a whole URL is asked
        headers = self.headers
        hub.asked.append(Asked(self.command, self.path, headers["Range"], headers["Authorization"]))
        if path.startswith("/store/"):
            _, _, owner, name, file = path.split("/", 4)
            self._send_file(hub, f"{owner}/{name}", file)
        elif match := LISTED.fullmatch(path):
            if self._is_let_in(match["repo"], "RepoNotFound"):
                self._send(200, json.dumps(hub.listed(match["repo"])).encode())
        elif match := RESOLVED.fullmatch(path):
            if self._is_let_in(match["repo"], "GatedRepo"):
                self._redirect(hub, match["repo"], match["name"])
        else:
            self._send(404, b"")

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...

    def _is_let_in(self, repo: str, code: str) -> bool:
        hub = self.server.hub
        if repo not in hub.repos:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif hub.token and code == "GatedRepo" and self.headers["Authorization"] != f"Bearer {hub.token}":
            self._send(401, b"", {"X-Error-Code": code})
        else:
            return True
        return False

    def _redirect(self, hub: HubServer, repo: str, name: str) -> None:
        content = hub.files(repo)[name]
        tag = digest(name, content)
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": hub.commit(repo), "X-Linked-Etag": f'"{tag}"'}
        headers |= {"X-Linked-Size": str(len(content)), "Location": f"{hub.store_url}/store/{repo}/{name}"}
        self._send(302, b"", headers)

    def _send_file(self, hub: HubServer, repo: str, name: str) -> None:
        content = hub.files(repo)[name]
        if name in hub.altered:
            content = content[:-1] + bytes([content[-1] ^ 1])
        begin = (
            int(self.headers["Range"].removeprefix("bytes=").partition("-")[0])
            if self.headers["Range"]
            else 0
        )
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if name in hub.stalls:
            self._write(content[begin : hub.stalls.pop(name)])
            hub.is_closing.wait(60)
        elif name in hub.breaks:
            self._write(content[begin : hub.breaks.pop(name)])
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self._write(content[begin:])

    def _write(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
