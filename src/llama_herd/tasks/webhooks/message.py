"""A webhook as it travels: a small JSON object, signed with the tenant's secret."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from standardwebhooks import Webhook

from llama_herd.tasks.ledger.outbox import WebhookEntry


def body_of(entry: WebhookEntry) -> str:
    """A webhook's body, equal for each try. It has ids and states, and no text of the job."""
    ended = datetime.fromtimestamp(entry.ended_ms / 1000, UTC).isoformat(timespec="milliseconds")
    data = {"id": entry.id, "state": entry.state, "finish_reason": entry.finish_reason}
    message = {"type": entry.type, "timestamp": ended.replace("+00:00", "Z"), "data": data}
    return json.dumps(message, separators=(",", ":"))


def headers_of(entry: WebhookEntry, body: str, secret: str) -> Mapping[str, str]:
    """The headers of one try: the signature holds for its time."""
    now = datetime.now(UTC)
    return {
        "Content-Type": "application/json",
        "webhook-id": entry.message,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(entry.message, now, body),
    }
