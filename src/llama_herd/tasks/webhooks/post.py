"""One try to deliver a webhook: its signed request, and how the receiver has answered."""

import asyncio
import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import SplitResult, urlsplit

import h11
from standardwebhooks import Webhook

from llama_herd.tasks.ledger.outbox import WebhookEntry
from llama_herd.tasks.webhooks.connector import AddressRefused, Connector

#: A receiver that takes longer than this to answer has not answered.
TIMEOUT_S = 15.0
#: Most bytes of an answer's head, and of all that comes before it. What follows it is not read.
_MAX_HEAD_BYTES = 16_384
_GONE = 410


@dataclass(frozen=True, slots=True)
class PostOutcome:
    """The outcome of one try.

    error: why it has failed, for people; empty if the receiver has the message. is_final: no other try is of
    use. is_silent: the host has not answered at all.
    """

    error: str = ""
    is_final: bool = False
    is_silent: bool = False


def signed_webhook(entry: WebhookEntry, secrets: Iterable[str]) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a webhook. secrets: each signs the body, with the time of now.

    The body is equal for each try. It has ids and states, and no text of the job.
    """
    now = datetime.now(UTC)
    ended = datetime.fromtimestamp(entry.ended_ms / 1000, UTC).isoformat(timespec="milliseconds")
    data = {"id": entry.id, "state": entry.state, "finish_reason": entry.finish_reason}
    message = {"type": entry.type, "timestamp": ended.replace("+00:00", "Z"), "data": data}
    body = json.dumps(message, separators=(",", ":"))
    headers = {
        "Content-Type": "application/json",
        "webhook-id": entry.message,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(entry.message, now, body) for secret in secrets),
    }
    return headers, body.encode()


async def post(
    connector: Connector, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float = TIMEOUT_S
) -> PostOutcome:
    """Send a message once. No redirect is followed."""
    try:
        async with asyncio.timeout(timeout_s):
            status = await _status(connector, urlsplit(url), headers, body)
    except AddressRefused as error:
        return PostOutcome(str(error), is_final=True)
    except TimeoutError:
        return PostOutcome(f"no answer within {timeout_s:g} s", is_silent=True)
    except ssl.SSLCertVerificationError as error:
        return PostOutcome(f"the certificate is not valid: {error.verify_message}", is_silent=True)
    except OSError as error:
        return PostOutcome(f"no connection: {error.strerror or type(error).__name__}", is_silent=True)
    except UnicodeError:  # a label of the host's name is empty, or longer than 63 characters
        return PostOutcome("the host has no valid name", is_final=True)
    except h11.ProtocolError:
        return PostOutcome("the answer is no HTTP")
    if status is None:
        return PostOutcome(
            f"the answer's head, with what comes before it, has more than {_MAX_HEAD_BYTES} bytes"
        )
    return PostOutcome() if 200 <= status < 300 else PostOutcome(f"HTTP {status}", is_final=status == _GONE)


async def _status(
    connector: Connector, url: SplitResult, headers: Mapping[str, str], body: bytes
) -> int | None:
    """The status of the answer; None: it has not begun after as many bytes as its whole head may have."""
    reader, writer = await connector.connect(url)
    try:
        http = h11.Connection(h11.CLIENT, _MAX_HEAD_BYTES)
        own = {
            "Host": url.netloc,
            "User-Agent": "llama-herd",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        request = h11.Request(method="POST", target=target, headers=[*own.items(), *headers.items()])
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(part) or b"")
        await writer.drain()
        num_left = _MAX_HEAD_BYTES
        while not isinstance(event := http.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                if not num_left:
                    return None
                data = await reader.read(num_left)
                num_left -= len(data)
                http.receive_data(data)
        return event.status_code
    finally:
        writer.close()
