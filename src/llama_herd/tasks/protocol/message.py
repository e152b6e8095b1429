"""The Celery message of a job, as kombu's Redis transport wants it.

It carries only the job's id; the prompt is in the record. The record keeps the message as an envelope, with a
gap for the delivery tag. So a lost message can be pushed again under a new tag.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

TASK_NAME = "herd.generate"
#: The tasks of Celery that are jobs, and the kind of each one's jobs; None: as the job itself says.
KIND_OF_TASK: Mapping[str, str | None] = {TASK_NAME: None, "herd.embed": "embed", "herd.rerank": "rank"}
#: Placeholder of the delivery tag. The scripts replace its first occurrence, which is in `properties`.
TAG_GAP = "@tag@"
#: Placeholder of the id in the messages of our client, which differ in nothing else.
_ID_GAP = "@id@"

#: Celery's headers that a message keeps when it is pushed again. Left out: `argsrepr` and `kwargsrepr`, which
#: may contain prompts, and `eta`, which is over by then.
_KEPT_HEADERS = (
    "lang",
    "root_id",
    "parent_id",
    "group",
    "group_index",
    "meth",
    "shadow",
    "expires",
    "retries",
    "timelimit",
    "origin",
    "ignore_result",
    "replaced_task_nesting",
    "stamped_headers",
    "stamps",
)
#: Header that says where the sender looks for results: a URL without secrets, or that its broker has them.
RESULTS_AT, BESIDE_JOBS = "herd_results_at", "broker"
#: Header of the W3C that names a trace: version, id of the trace, id of the sender's span, flags.
TRACEPARENT = "traceparent"
_TRACEPARENT = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
#: The one flag that all versions have: the sender records this trace.
_SAMPLED = 1

#: Where the headers of a message begin; how far they are searched; and those that a `MessageHead` has. Quotes
#: inside a text are escaped, so no body and no argument reads as a header.
_HEADERS_BEGIN = re.compile(rb'"headers"\s*:\s*\{')
_MAX_HEADERS_BYTES = 65_536
_HEAD = re.compile(rb'"(id|task|origin)"\s*:\s*"((?:[^"\\]|\\.){1,255})"')
#: What may be shown of these: other characters are no name, and may be of a prompt.
_NAME = re.compile(rb"[A-Za-z0-9._:@/-]+")

_NO_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def queue_name(model: str, tenant: str = "default") -> str:
    """The queue of a model."""
    return f"herd.{model}" if tenant == "default" else f"herd.{tenant}:{model}"


def model_of(queue: str, tenant: str) -> str:
    """The model whose queue this is."""
    return queue.removeprefix(queue_name("", tenant))


def is_queue_of(tenant: str, name: str) -> bool:
    """Whether `name` is the name of a queue of this tenant. The scripts refuse all others."""
    prefix = queue_name("", tenant)
    return name.startswith(prefix) and ":" not in name[len(prefix) :]


def known_traceparent(given: object) -> str | None:
    """A header of the trace in version 00, which is all that we know; None if it is none.

    One of a higher version begins like one of 00, and may go on: so the W3C wants it to be read.
    """
    found = _TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    flags = found["flags"] if found["version"] == "00" else f"{int(found['flags'], 16) & _SAMPLED:02x}"
    return f"00-{found['trace']}-{found['span']}-{flags}"


def trace_id_of(headers: Mapping[str, Any]) -> str | None:
    """The id of the trace that a message belongs to; None if no valid header says so."""
    known = known_traceparent(headers.get(TRACEPARENT))
    return known.split("-")[1] if known else None


def is_job_task(name: object) -> bool:
    """Whether this is the name of a task that is a job."""
    return isinstance(name, str) and name in KIND_OF_TASK


def job_task_of(headers: Mapping[str, Any]) -> str:
    """The task of a job's message; of what others have written it is the first."""
    name = headers.get("task")
    return name if isinstance(name, str) and name in KIND_OF_TASK else TASK_NAME


class MessageHead(NamedTuple):
    """What the headers of a message name, as far as they can be found, though it may be no whole JSON.

    None: it is not there, or is no plain name. origin: the process that sent it, as Celery's `gen12@host`.
    """

    task_id: str | None = None
    task: str | None = None
    origin: str | None = None

    @classmethod
    def find_in(cls, raw: bytes) -> Self:
        """Look for the headers without unpacking the message, however long it is."""
        begin = _HEADERS_BEGIN.search(raw)
        if begin is None:
            return cls()
        found = _HEAD.finditer(raw, begin.end(), begin.end() + _MAX_HEADERS_BYTES)
        first = {one[1]: one[2] for one in reversed([*found])}
        named = {key: text.decode() for key, text in first.items() if _NAME.fullmatch(text)}
        return cls(named.get(b"id"), named.get(b"task"), named.get(b"origin"))


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Envelope:
    """A job's message without its delivery tag, and its queue."""

    queue: str
    text: str

    @classmethod
    def for_job(
        cls, job_id: str, queue: str, *, ignore_result: bool = False, traceparent: str | None = None
    ) -> Self:
        """The message of a job that our client submits. `ignore_result`: Celery stores no result."""
        return cls(queue, _dumps(job_id)[1:-1].join(_around_id(queue, ignore_result, traceparent)))

    @classmethod
    def for_unread(cls, job_id: str, queue: str, headers: Mapping[str, Any]) -> Self:
        """A message that replaces one that cannot be read; `headers` say why, and of which task it was."""
        return cls._build(job_id, queue, headers, _NO_EMBED, {})

    @classmethod
    def from_request(
        cls,
        request: Mapping[str, Any],
        embed: Mapping[str, Any] | None,
        queue: str,
        dumps: Callable[[object], str] = _dumps,
    ) -> Self:
        """The envelope of a bare message, made from what Celery knows of it.

        `request` is Celery's request dictionary. `embed`, the third part of the message's body, holds links,
        chains and chords. Arguments are left out, since they contain the prompt. `queue` is the queue that
        the message came from; the routing in the message itself is only its sender's claim. `dumps` writes
        JSON: kombu's has types of its own.
        """
        headers = {name: request[name] for name in _KEPT_HEADERS if request.get(name) is not None}
        headers["task"] = job_task_of(request)
        if trace := known_traceparent(request.get(TRACEPARENT)):
            headers[TRACEPARENT] = trace
        properties = {name: request[name] for name in ("correlation_id", "reply_to") if request.get(name)}
        return cls._build(request["id"], queue, headers, embed or _NO_EMBED, properties, dumps)

    @classmethod
    def _build(
        cls,
        job_id: str,
        queue: str,
        headers: Mapping[str, Any],
        embed: Mapping[str, Any],
        properties: Mapping[str, Any],
        dumps: Callable[[object], str] = _dumps,
    ) -> Self:
        body = base64.b64encode(dumps([[], {}, embed]).encode()).decode()
        message = {
            # First, because the scripts replace the first gap, and headers come from outside.
            "properties": {
                "delivery_tag": TAG_GAP,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "correlation_id": job_id,
                **properties,
            },
            "headers": {"task": TASK_NAME, **headers, "id": job_id, "argsrepr": "()", "kwargsrepr": "{}"},
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "body": body,
        }
        return cls(queue, dumps(message))

    def with_tag(self, delivery_tag: str) -> str:
        """The message as it is in the queue's list."""
        return self.text.replace(TAG_GAP, delivery_tag, 1)


@lru_cache(maxsize=64)
def _around_id(queue: str, ignore_result: bool, traceparent: str | None) -> Sequence[str]:
    """The parts of our client's messages before, between and after the job's id."""
    headers = {"lang": "py", "root_id": _ID_GAP} | ({"ignore_result": True} if ignore_result else {})
    headers |= {TRACEPARENT: traceparent} if traceparent else {}
    return tuple(Envelope._build(_ID_GAP, queue, headers, _NO_EMBED, {}).text.split(_ID_GAP))
