"""A receiver of webhooks for development: it checks the signature of each, and tells what has come."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

#: Ours are much shorter.
MAX_BYTES = 65_536
IDLE_S = 15.0


class WebhookListener(ThreadingHTTPServer):
    """Listens at a port of this machine. tell: gets a line for each request."""

    daemon_threads = True

    def __init__(self, port: int, secret: str, tell: Callable[[str], None]) -> None:
        self.webhook = Webhook(secret)
        self.tell = tell
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: WebhookListener
    timeout = IDLE_S

    def do_POST(self) -> None:
        body = self._body()
        status, line = (413, "too long") if body is None else self._verify(body)
        self.server.tell(f"{self.headers.get('webhook-id', '-')}  {line}")
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self) -> bytes | None:
        """The body; None if it is too long, or its length is not said."""
        said = self.headers.get("Content-Length", "")
        is_usable = said.isascii() and said.isdigit() and int(said[:9]) <= MAX_BYTES
        return self.rfile.read(int(said)) if is_usable else None

    def _verify(self, body: bytes) -> tuple[int, str]:
        try:
            self.server.webhook.verify(body, dict(self.headers), json_parse=False)
        except (WebhookVerificationError, ValueError) as error:
            return 400, f"refused: {error}"
        return 204, body.decode()

    def log_message(self, *_: object) -> None:
        """Nothing more than what is told."""
