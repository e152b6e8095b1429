"""Files and batches over plain HTTP, at whichever of some gateways answers."""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.reply import Reply

Answer = dict[str, Any]

COMPLETIONS = "/v1/completions"
ENDED = {"completed", "failed", "expired", "cancelled"}


def rows(num: int, **body: object) -> list[Answer]:
    """Lines in OpenAI's form; the prompt of each is its name."""
    line = {"method": "POST", "url": COMPLETIONS}
    asked = {"max_tokens": 8, **body}
    return [line | {"custom_id": f"c{n}", "body": {"prompt": f"c{n}", **asked}} for n in range(num)]


def lines(items: Iterable[Mapping[str, Any] | str]) -> bytes:
    return "".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items).encode()


def form(content: bytes, fields: Mapping[str, str], filename: str = "in.jsonl") -> tuple[bytes, str]:
    """A form with a file, and its content type."""
    border = secrets.token_hex(8)
    parts = [
        f'--{border}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n\r\n'
    return b"".join([*parts, head.encode(), content, f"\r\n--{border}--\r\n".encode()]), (
        f"multipart/form-data; boundary={border}"
    )


@dataclass(frozen=True)
class BatchApi:
    """A client. url: asked for before each request, since gateways come and go."""

    url: Callable[[], str]
    key: str = ""

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] = {}) -> Reply:
        place = urlsplit(self.url())
        connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        access = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            connection.request(method, path, raw, {**access, **headers})
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def upload(self, content: bytes, filename: str = "in.jsonl", **fields: str) -> Reply:
        body, kind = form(content, {"purpose": "batch", **fields}, filename)
        return self.ask("POST", "/v1/files", body, {"Content-Type": kind})

    def create(self, file_id: str, key: str = "", **fields: Any) -> Reply:
        """key: of idempotency."""
        asked = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h", **fields}
        return self.ask("POST", "/v1/batches", asked, {"Idempotency-Key": key} if key else {})

    def begin(self, items: Iterable[Mapping[str, Any] | str], **fields: Any) -> str:
        """Upload lines, and make a batch of them. Returns its id."""
        uploaded = self.upload(lines(items))
        assert uploaded.status == 200, uploaded.raw
        made = self.create(uploaded.json["id"], **fields)
        assert made.status == 200, made.raw
        return str(made.json["id"])

    def show(self, batch_id: str) -> Answer:
        found: Answer = self.ask("GET", f"/v1/batches/{batch_id}").json
        return found

    def cancel(self, batch_id: str) -> Reply:
        return self.ask("POST", f"/v1/batches/{batch_id}/cancel")

    def end_of(self, batch_id: str, patience_s: float = PATIENCE_S) -> Answer:
        """The batch, once it has ended, whoever dies meanwhile."""
        found: Answer = {}

        def has_ended() -> bool:
            nonlocal found
            try:
                found = self.show(batch_id)
            except (OSError, HTTPException, ValueError):
                return False
            return found.get("status") in ENDED

        wait_until(has_ended, f"{batch_id} ends", patience_s)
        return found

    def ids(self, path: str) -> list[str]:
        """The ids of all pages of a list."""
        seen: list[str] = []
        after = ""
        while True:
            page = self.ask("GET", path + after).json
            seen += [one["id"] for one in page["data"]]
            if not page["has_more"]:
                return seen
            after = f"&after={page['last_id']}"

    def content(self, file_id: str | None) -> list[Answer]:
        """The lines of a file; none where there is no file."""
        if file_id is None:
            return []
        found = self.ask("GET", f"/v1/files/{file_id}/content")
        assert found.status == 200, found.raw
        return [json.loads(line) for line in found.raw.splitlines()]
