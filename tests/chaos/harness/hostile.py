"""Malicious messages, drawn by a seed: every kind that is known to hurt a reader of messages.

Messages that look like mistakes are in `malformed`. Here the sender knows how a worker reads messages.
"""

import base64
import bz2
import json
import lzma
import pickle
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.chaos.harness.malformed import base64_text, celery_message, mutants

#: Part of each prompt, so that a leaked prompt can be found.
CANARY = "a canary"
JOB: dict[str, Any] = {"prompt": CANARY, "sampling": {"max_tokens": 2}}
EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

TASK = "herd.generate"
#: Celery's own tasks, which every app has. With the arguments given here they can do nothing.
BUILTINS = ("celery.backend_cleanup", "celery.chain", "celery.chord", "celery.chunks", "celery.group")

HEADERS = (
    *("id", "root_id", "parent_id", "lang", "shadow", "retries", "origin", "ignore_result", "meth", "group"),
    *("group_index", "expires", "eta", "timelimit", "replaced_task_nesting", "stamped_headers", "stamps"),
    *(
        "argsrepr",
        "kwargsrepr",
        "compression",
        "chord",
        "chain",
        "callbacks",
        "errbacks",
        "method",
        "taskset",
    ),
    *("correlation_id", "reply_to", "priority", "delivery_mode", "delivery_info", "delivery_tag"),
    *("body_encoding", "content_type", "content_encoding", "is_eager", "redelivered", "x-death"),
)
SAMPLING = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n", "logit_bias", "seed"),
    *("stop", "ignore_eos", "stop_token_ids", "logprobs", "top_logprobs", "prompt_logprobs"),
    "truncate_prompt_tokens",
)
FIELDS = (
    *("v", "prompt_ids", "messages", "model", "tenant", "priority", "flush_ms", "sampling", "metadata"),
    *("echo", "add_special_tokens"),
)

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 64, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**300, 10**4000),
    *(0.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), "", "x", "0", "1e999", "g", "../../etc/passwd"),
    *(
        "\0",
        "a\0b",
        "\ud800",
        "x\udfff",
        "\u202e",
        "é" * 999,
        "9" * 5000,
        "\r\n*1\r\n$4\r\nPING\r\n",
        "@tag@",
    ),
    *("None", "[]", "{}", "{{7*7}}", "%s%n", "$(id)", "__class__", "herd:default:pending"),
)
TIMES = (
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999", "0000-00-00"),
    *("0001-01-01", "1970-01-01T00:00:00Z", "2038-01-19T03:14:08", "1e308", "-1", "now", "2020-W01-1"),
    *("2020-02-30T00:00:00", "2020-01-01T25:00:00", "2020-01-01T00:00:00+99:99", "20200101T000000Z"),
)
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": zlib.compress,
    "application/x-gzip": zlib.compress,
    "zlib": zlib.compress,
    "bzip2": bz2.compress,
    "application/x-bz2": bz2.compress,
    "lzma": lzma.compress,
    "application/x-lzma": lzma.compress,
    "zstd": bytes,
    "application/x-brotli": bytes,
}
FORMATS = (
    *("application/x-python-serialize", "application/x-yaml", "application/x-msgpack", "application/data"),
    *("text/plain", "application/json; charset=utf-16", "APPLICATION/JSON", "json", "pickle", ""),
)

#: Most bytes of a long message: just below the limit at which it is put aside unread.
LONG_BYTES = 2_000_000
#: One of this many messages is that long; the others are a hundred times shorter.
LONG_ONE_IN = 40

#: Kinds that leave no trace: tasks that Celery itself runs, and messages that look like our client's.
TRACELESS = ("other task", "forged")

_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class HostileMessage(NamedTuple):
    """A malicious message and its kind."""

    kind: str
    raw: bytes

    @property
    def job_id(self) -> str | None:
        """The generation job that it names, if a worker can tell."""
        try:
            found = json.loads(self.raw.decode(errors="replace"))
            headers = found["headers"] if "task" in found["headers"] else json.loads(_body(found))
            task, job_id = headers["task"], headers["id"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return job_id if task == TASK and isinstance(job_id, str) and _ID.fullmatch(job_id) else None


def _body(found: dict[str, Any]) -> bytes:
    return base64.b64decode(found["body"])


class HostileMessages:
    """Draws endless messages, the same for the same seed. `known_ids` are ids of jobs on record."""

    def __init__(self, seed: int, known_ids: Sequence[str] = ()) -> None:
        self._rng = Random(seed)
        self._mutants = mutants(self._rng)
        self._known_ids = list(known_ids)
        self._kinds: dict[str, Callable[[], bytes]] = {
            "long list": self._long_list,
            "many fields": self._many_fields,
            "odd fields": self._odd_fields,
            "deep": self._deep,
            "odd headers": self._odd_headers,
            "odd embed": self._odd_embed,
            "group or chord": self._group_or_chord,
            "long embed": self._long_embed,
            "time": self._time,
            "tag": self._tag,
            "forged": self._forged,
            "compressed": self._compressed,
            "serialized": self._serialized,
            "protocol 1": self._protocol_1,
            "text": self._text,
            "known id": self._known_id,
            "other task": self._other_task,
            "mutant": lambda: next(self._mutants),
        }

    def __iter__(self) -> Iterator[HostileMessage]:
        while True:
            kind = self._rng.choice(list(self._kinds))
            yield HostileMessage(kind, self._kinds[kind]())

    # Parts of messages

    def _message(self, body: Any = None, **changes: Any) -> bytes:
        """A good message of a new job, with some changes."""
        job_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
        self._known_ids = [*self._known_ids[-99:], job_id]
        body = [[], JOB, EMBED] if body is None else body
        return celery_message(
            body, **{"id": job_id, "delivery_tag": f"t{self._rng.getrandbits(64)}", **changes}
        )

    def _job_message(self, **fields: Any) -> bytes:
        return self._message([[], JOB | fields, EMBED])

    @property
    def _length(self) -> int:
        """The length of a long message in bytes; sometimes the longest allowed."""
        most = LONG_BYTES if self._rng.randrange(LONG_ONE_IN) == 0 else LONG_BYTES // 100
        return self._rng.randrange(most // 10, most)

    def _odd_value(self) -> Any:
        """An unexpected value."""
        rng = self._rng
        match rng.randrange(6):
            case 0:
                return [rng.choice(SCALARS) for _ in range(rng.randrange(4))]
            case 1:
                return {str(rng.choice(SCALARS)): rng.choice(SCALARS) for _ in range(rng.randrange(4))}
            case 2:
                return nested(rng.choice([2, 30, 300]))
            case _:
                return rng.choice(SCALARS)

    def _some_odd(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Some of these names, with odd values."""
        return {name: self._odd_value() for name in self._rng.sample(names, self._rng.randint(1, 3))}

    # The kinds

    def _long_list(self) -> bytes:
        item: Any = self._rng.choice([-1, 1, "", "x", None, 2**40, [], {"role": "user", "content": CANARY}])
        items = [item] * (self._length // (len(json.dumps(item)) + 2))
        where = self._rng.choice(["stop", "stop_token_ids", "prompt_ids", "messages", "metadata"])
        if where.startswith("stop"):
            return self._job_message(sampling={where: items})
        return self._job_message(**{where: items, "prompt": None})

    def _many_fields(self) -> bytes:
        many = {f"x{number}": -1 for number in range(self._length // 15)}
        match self._rng.randrange(4):
            case 0:
                return self._job_message(**many)
            case 1:
                return self._job_message(sampling=many)
            case 2:
                return self._job_message(metadata=many)
            case _:
                return self._job_message(sampling={"logit_bias": {name[1:]: 0.5 for name in many}})

    def _odd_fields(self) -> bytes:
        if self._rng.random() < 0.5:
            return self._job_message(**self._some_odd(FIELDS))
        return self._job_message(sampling={"max_tokens": 2, **self._some_odd(SAMPLING)})

    def _deep(self) -> bytes:
        depth = self._rng.choice([100, 900, 5_000, 50_000])
        deep = "[" * depth + "]" * depth if self._rng.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth
        good = json.dumps(JOB)
        body = self._rng.choice(
            [deep, f"[[], {deep}, null]", f"[{deep}, {good}, {{}}]", f"[[], {good}, {deep}]"]
        )
        if self._rng.random() < 0.5:
            return self._message(raw_body=base64_text(body.encode()))
        raw = self._message(shadow="@deep@")
        return raw.replace(b'"@deep@"', deep.encode())

    def _odd_headers(self) -> bytes:
        return self._message(**self._some_odd(HEADERS))

    def _odd_embed(self) -> bytes:
        embed = self._odd_value() if self._rng.random() < 0.2 else EMBED | self._some_odd(tuple(EMBED))
        return self._message([[], JOB, embed])

    def _group_or_chord(self) -> bytes:
        """A group or chord that was never created, for Celery to act on after the job."""
        signature = {
            "task": TASK,
            "args": [],
            "kwargs": JOB,
            "options": {},
            "subtask_type": None,
            **self._odd_signature(),
        }
        callback = self._rng.choice([signature, [signature], {"task": self._odd_value()}, self._odd_value()])
        embed = EMBED | {self._rng.choice(tuple(EMBED)): callback, "chord": callback}
        group = {"group": self._rng.choice(["g", "g", self._odd_value()]), "group_index": self._odd_value()}
        return self._message([[], JOB, self._rng.choice([EMBED, embed])], **group)

    def _odd_signature(self) -> dict[str, Any]:
        return self._some_odd(
            ("task", "args", "kwargs", "options", "subtask_type", "chord_size", "immutable")
        )

    def _long_embed(self) -> bytes:
        filler = "x" * self._length
        match self._rng.randrange(4):
            case 0:
                return self._message([[], JOB, EMBED | {"callbacks": [{"task": filler, "options": {}}]}])
            case 1:
                return self._message(stamps={"filler": filler}, stamped_headers=["filler"])
            case 2:
                return self._message(**{self._rng.choice(HEADERS): filler})
            case _:
                return self._job_message(prompt=f"{CANARY} {filler}")

    def _time(self) -> bytes:
        names = self._rng.choice([["eta"], ["expires"], ["eta", "expires"]])
        return self._message(**{name: self._rng.choice([*TIMES, self._odd_value()]) for name in names})

    def _tag(self) -> bytes:
        """A delivery tag that looks like our client's, with arguments and without."""
        job_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
        named = self._rng.choice([job_id, self._rng.choice(self._known_ids or [CANARY])])
        end = self._rng.choice(["", "1", "1:1.7", "1:99999999999999999999", "@tag@", "\0", ":" * 99])
        body = self._rng.choice([[[], JOB, EMBED], [[], {}, EMBED], [[], {}, None]])
        return self._message(body, id=job_id, delivery_tag=f"{named}:{end}")

    def _forged(self) -> bytes:
        """Exactly like our client's, but its job has no record: it looks forgotten, and runs nothing."""
        job_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
        tag = f"{job_id}:1:{self._rng.randrange(2 * 10**12)}"
        return self._message([[], {}, EMBED], id=job_id, delivery_tag=tag, correlation_id=job_id)

    def _compressed(self) -> bytes:
        name = self._rng.choice(list(COMPRESSIONS))
        body = json.dumps([[], JOB | {"prompt": CANARY + "0" * self._length}, EMBED]).encode()
        packed = COMPRESSIONS[name](body)
        return self._message(
            raw_body=base64_text(packed[: self._rng.choice([None, 0, 10, -1])]), compression=name
        )

    def _serialized(self) -> bytes:
        body = self._rng.choice(
            [pickle.dumps([[], JOB, EMBED]), b"[[], {}, {}]", b"\x93\x90\x80\x80", b"\xff"]
        )
        coding = self._rng.choice(["binary", "utf-8", "utf-16", "idna", "zip", "rot13", "\0"])
        name = self._rng.choice(FORMATS)
        return self._message(raw_body=base64_text(body), content_type=name, content_encoding=coding)

    def _protocol_1(self) -> bytes:
        """Celery's first protocol, with everything in the body."""
        job_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
        body = {"task": TASK, "id": job_id, "args": [], "kwargs": JOB, "retries": 0, "eta": None}
        if self._rng.random() < 0.5:
            body |= self._some_odd(
                ("task", "id", "args", "kwargs", "retries", "eta", "utc", "expires", "taskset")
            )
        raw = json.loads(self._message(body))
        raw["headers"] = self._rng.choice([{}, {}, {"compression": None}, {"id": job_id}])
        return json.dumps(raw).encode()

    def _text(self) -> bytes:
        odd = self._rng.choice(
            ["\0", "\ud800", "\udfff x", "\u202e", "\ufeff", "\x1b[2J", "\r\n", "\u2028" * 99]
        )
        where = self._rng.choice(
            ["prompt", "id", "model", "metadata", "messages", "stop", "shadow", "unknown"]
        )
        match where:
            case "id" | "shadow":
                return self._message(**{where: f"a{odd}b"})
            case "metadata":
                return self._job_message(metadata={odd: odd})
            case "messages":
                return self._job_message(
                    prompt=None, messages=[{"role": "user", "content": f"{CANARY}{odd}"}]
                )
            case "stop":
                return self._job_message(sampling={"max_tokens": 2, "stop": [odd]})
            case "unknown":
                return self._job_message(**{odd: odd})
            case _:
                return self._job_message(**{where: f"{CANARY}{odd}"})

    def _known_id(self) -> bytes:
        """A job that exists already, or another one under its id."""
        job = self._rng.choice([JOB, {}, JOB | {"prompt": f"{CANARY} of others"}, {"prompt": None}])
        return self._message([[], job, EMBED], id=self._rng.choice(self._known_ids or [CANARY]))

    def _other_task(self) -> bytes:
        task = self._rng.choice(
            [*BUILTINS, "celery.ping", "os.system", "herd.generate ", "Herd.Generate", "\0"]
        )
        return self._message([[self._odd_value()], {"x": CANARY}, EMBED], task=task)


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    deep: Any = CANARY
    for _ in range(depth):
        deep = [deep]
    return deep
