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


def celery_message(
    body: Any = None, *, raw_body: str | None = None, without: str = "", **changes: Any
) -> bytes:
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


def base64_text(raw: bytes) -> str:
    """A body as it stands in a message: kombu's Redis transport packs bytes so."""
    return base64.b64encode(raw).decode()


#: Positional and keyword arguments of a good message. A third part may follow: links, chain and chord.
GOOD_BODY = [[], {"prompt": "a canary", "sampling": {"max_tokens": 2}}]

#: Messages that cannot be those of a job: they go to the dead letters.
UNREADABLE: dict[str, bytes] = {
    "not JSON": b"hello",
    "empty": b"",
    "null": b"null",
    "number": b"7",
    "list": b"[]",
    "bad UTF-8": b"\xff\xfe{",
    "deep": b"[" * 100_000,
    "bad base64": celery_message(raw_body="A"),
    "body not UTF-8": celery_message(raw_body=base64_text(b"\xff\xff")),
    "body empty": celery_message(raw_body=""),
    "body null": celery_message(raw_body=base64_text(b"null")),
    "body scalar": celery_message(5),
    "body empty list": celery_message([]),
    "body deep": celery_message(raw_body=base64_text(b"[" * 100_000)),
    "body of two": celery_message([[], {}]),
    "unknown body_encoding": celery_message(body_encoding="rot13"),
    "unknown content-type": celery_message(content_type="application/x-python-serialize"),
    "compressed": celery_message(compression="application/x-gzip"),
    "no headers": celery_message(without="headers"),
    "headers a list": celery_message(headers=[]),
    "no properties": celery_message(without="properties"),
    "no delivery_tag": celery_message(without="delivery_tag"),
    "no body_encoding": celery_message(without="body_encoding"),
    "no content-type": celery_message(without="content-type"),
    "no body": celery_message(without="body"),
    "no delivery_info": celery_message(without="delivery_info"),
    "delivery_info a list": celery_message(delivery_info=[]),
    "unknown task": celery_message(task="rm.rf"),
    "task a dict": celery_message(task={}),
    "no task": celery_message(without="task"),
    "no id": celery_message(without="id"),
    "id a dict": celery_message(id={}),
    "id with quotes": celery_message(id='a"b\nc'),
    "id too long": celery_message(id="x" * 129),
}

#: Messages that name a job, but an invalid one: it ends with an error that says so.
REFUSED: dict[str, bytes] = {
    "args": celery_message([["a canary", "and another"], {}, {}]),
    "args a number": celery_message([5, {}, {}]),
    "embed a list": celery_message([*GOOD_BODY, []]),
    "nothing asked for": celery_message([[], {}, {}]),
    "timelimit a string": celery_message(timelimit="soon"),
    "expires a dict": celery_message(expires={}),
    "expires no date": celery_message(expires="tomorrow"),
    "eta no date": celery_message(eta="tomorrow"),
    "names of Python": celery_message([[], {"__class__": 1, "self": 2, "request": 3}, {}]),
}

#: Odd messages of a valid job: it runs.
ODD: dict[str, bytes] = {
    "a prompt as the only argument": celery_message([["a canary"], {"sampling": {"max_tokens": 2}}, {}]),
    "no content-encoding": celery_message(without="content-encoding"),
    "no lang": celery_message(without="lang"),
    "no priority": celery_message(without="priority"),
    "no correlation_id": celery_message(without="correlation_id"),
    "delivery_info empty": celery_message(delivery_info={}),
    "unknown content-encoding": celery_message(content_encoding="klingon"),
    "routing_key a dict": celery_message(delivery_info={"exchange": "", "routing_key": {}}),
    "delivery_tag a dict": celery_message(delivery_tag={}),
    "retries a string": celery_message(retries="often"),
    "priority a string": celery_message(priority="high"),
    "callbacks a string": celery_message([*GOOD_BODY, {"callbacks": "x"}]),
    "chain a number": celery_message([*GOOD_BODY, {"chain": 7}]),
    "group a dict": celery_message(group={}),
    "root_id a dict": celery_message(root_id={}),
    "correlation_id a dict": celery_message(correlation_id={}),
    "reply_to a dict": celery_message(reply_to={}),
}


def mutants(rng: Random) -> Iterator[bytes]:
    """Known kinds and good messages, each of a new job, with bytes changed, cut out or doubled."""
    seeds = [celery_message(), *UNREADABLE.values(), *REFUSED.values(), *ODD.values()]
    while True:
        fresh_id = str(uuid.UUID(bytes=rng.randbytes(16))).encode()
        raw = bytearray(_ID.sub(fresh_id, rng.choice(seeds)[:4096]))
        for _ in range(rng.randint(1, 8)):
            start = rng.randrange(len(raw) + 1)
            end = start + rng.choice((0, 1, 1, rng.randrange(64)))
            raw[start:end] = rng.choice((b"", rng.randbytes(1), raw[start:end] * 2, b'"', b"{}", b"null"))
        yield bytes(raw)
