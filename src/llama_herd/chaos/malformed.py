"""Messages that end a stock Celery worker: broken in every known way, and at random."""

import base64
import json
import re
import uuid
from collections.abc import Iterator
from random import Random
from typing import Any

#: The queue that a message is put back into: the bundled model's.
QUEUE = "herd.tales"

_ID = re.compile(rb'(?<="id": ")[0-9a-f-]{36}(?=")')


def message(body: Any = None, *, raw_body: str | None = None, without: str = "", **changes: Any) -> bytes:
    """A good message of Celery's protocol, with another body, and with changes or an omission by name.

    A name is looked for among the headers, then the properties, then the fields at the top.
    """
    body = [[], {"prompt": "a canary", "sampling": {"max_tokens": 2}}, {}] if body is None else body
    properties: dict[str, Any] = {
        "delivery_tag": str(uuid.uuid4()),
        "delivery_info": {"exchange": "", "routing_key": QUEUE},
        "priority": 0,
        "body_encoding": "base64",
        "correlation_id": "",
        "reply_to": "",
    }
    headers: dict[str, Any] = {"lang": "py", "task": "herd.generate", "id": str(uuid.uuid4())}
    top: dict[str, Any] = {
        "body": base64.b64encode(json.dumps(body).encode()).decode() if raw_body is None else raw_body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": properties,
    }
    for name, value in changes.items():
        name = name.replace("content_", "content-")
        place = top if name in top else properties if name in properties else headers
        place[name] = value
    for place in (top, properties, headers):
        place.pop(without, None)
    return json.dumps(top).encode()


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


GOOD = [[], {"prompt": "a canary", "sampling": {"max_tokens": 2}}]

#: Messages that cannot be those of a job: they go to the dead letters.
UNREADABLE: dict[str, bytes] = {
    "not JSON": b"hello",
    "empty": b"",
    "null": b"null",
    "number": b"7",
    "list": b"[]",
    "bad UTF-8": b"\xff\xfe{",
    "deep": b"[" * 100_000,
    "bad base64": message(raw_body="A"),
    "body not UTF-8": message(raw_body=encoded(b"\xff\xff")),
    "body empty": message(raw_body=""),
    "body null": message(raw_body=encoded(b"null")),
    "body scalar": message(5),
    "body empty list": message([]),
    "body deep": message(raw_body=encoded(b"[" * 100_000)),
    "body of two": message([[], {}]),
    "unknown body_encoding": message(body_encoding="rot13"),
    "unknown content-type": message(content_type="application/x-python-serialize"),
    "compressed": message(compression="application/x-gzip"),
    "no headers": message(without="headers"),
    "headers a list": message(headers=[]),
    "no properties": message(without="properties"),
    "no delivery_tag": message(without="delivery_tag"),
    "delivery_tag a dict": message(delivery_tag={}),
    "no body_encoding": message(without="body_encoding"),
    "no content-type": message(without="content-type"),
    "no body": message(without="body"),
    "no delivery_info": message(without="delivery_info"),
    "delivery_info a list": message(delivery_info=[]),
    "unknown task": message(task="rm.rf"),
    "task a dict": message(task={}),
    "no task": message(without="task"),
    "no id": message(without="id"),
    "id a dict": message(id={}),
    "id with quotes": message(id='a"b\nc'),
    "id too long": message(id="x" * 129),
}

#: Messages that name a job, but an invalid one: it ends with an error that says so.
REFUSED: dict[str, bytes] = {
    "args": message([["a canary", "and another"], {}, {}]),
    "args a number": message([5, {}, {}]),
    "embed a list": message([*GOOD, []]),
    "nothing asked for": message([[], {}, {}]),
    "timelimit a string": message(timelimit="soon"),
    "expires a dict": message(expires={}),
    "expires no date": message(expires="tomorrow"),
    "eta no date": message(eta="tomorrow"),
    "names of Python": message([[], {"__class__": 1, "self": 2, "request": 3}, {}]),
}

#: Odd messages of a valid job: it runs.
ODD: dict[str, bytes] = {
    "a prompt as the only argument": message([["a canary"], {"sampling": {"max_tokens": 2}}, {}]),
    "no content-encoding": message(without="content-encoding"),
    "no lang": message(without="lang"),
    "no priority": message(without="priority"),
    "no correlation_id": message(without="correlation_id"),
    "delivery_info empty": message(delivery_info={}),
    "unknown content-encoding": message(content_encoding="klingon"),
    "routing_key a dict": message(delivery_info={"exchange": "", "routing_key": {}}),
    "retries a string": message(retries="often"),
    "priority a string": message(priority="high"),
    "callbacks a string": message([*GOOD, {"callbacks": "x"}]),
    "chain a number": message([*GOOD, {"chain": 7}]),
    "group a dict": message(group={}),
    "root_id a dict": message(root_id={}),
    "correlation_id a dict": message(correlation_id={}),
    "reply_to a dict": message(reply_to={}),
}


def mutants(rng: Random) -> Iterator[bytes]:
    """Known kinds and good messages, each of a new job, with bytes changed, cut out or doubled."""
    seeds = [message(), *UNREADABLE.values(), *REFUSED.values(), *ODD.values()]
    while True:
        fresh_id = str(uuid.UUID(bytes=rng.randbytes(16))).encode()
        raw = bytearray(_ID.sub(fresh_id, rng.choice(seeds)[:4096]))
        for _ in range(rng.randint(1, 8)):
            start = rng.randrange(len(raw) + 1)
            end = start + rng.choice((0, 1, 1, rng.randrange(64)))
            raw[start:end] = rng.choice((b"", rng.randbytes(1), raw[start:end] * 2, b'"', b"{}", b"null"))
        yield bytes(raw)
