"""Reads what a herd has left in Redis, and names every law that does not hold.

From the run it needs only the ids of the accepted jobs. It reads each job's stream, record and Celery result
from Redis afterwards, and also the keys that should be empty by then.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from redis import Redis

from llama_herd.error_code import ErrorCode
from llama_herd.errors import DeadlineExceeded, GenerationError
from llama_herd.tasks.ledger.held_jobs import final_state
from llama_herd.tasks.ledger.ledger import SOUND_TOKENS, Ledger
from llama_herd.tasks.ledger.outbox import Outbox, WebhookEntry, webhook_message_id
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End, Event, Started, Token, Vectors, parse_event
from llama_herd.tasks.protocol.result import Result
from tests.chaos.harness.listener import event_fingerprint
from tests.chaos.harness.sabotage import POISONS
from tests.chaos.harness.verdict import Violation

#: Celery's state of a job, by the state of its record.
CELERY_STATES = {"done": "SUCCESS", "failed": "FAILURE", "cancelled": "REVOKED"}

#: The type of its FAILURE, by the finish reason of the job.
CELERY_ERRORS = {"deadline": DeadlineExceeded.__name__, "error": GenerationError.__name__}


@dataclass(frozen=True)
class Evidence:
    """The evidence about one job after its end, against which the laws are checked.

    written: the fingerprints of its events. heard: those of the events that a subscriber received, in order,
    one list per subscription. told: the webhook of its end that waits in the outbox. max_deaths: deaths of
    workers after which a job is given up.
    """

    job_id: str
    entry_ids: Sequence[str]
    events: Sequence[Event]
    record: Mapping[str, str]
    celery: Mapping[str, Any]
    immortal_keys: Sequence[str]
    written: Sequence[int]
    heard: Sequence[Sequence[int]] = ()
    told: WebhookEntry | None = None
    max_deaths: int = 3

    def violations(self) -> list[Violation]:
        """The laws that the evidence shows to be broken."""
        laws = {
            "lost": self._is_ended,
            "ends once": self._ends_once,
            "dense": self._is_dense,
            "tokens join": self._tokens_join,
            "vectors once": self._vectors_once,
            "epochs rise": self._epochs_rise,
            "end is true": self._end_is_true,
            "record agrees": self._record_agrees,
            "Celery agrees": self._celery_agrees,
            "given up rightly": self._is_given_up_rightly,
            "forgotten": self._is_forgotten,
            "heard as written": self._was_heard_as_written,
            "told": self._is_told,
        }
        return [Violation(name, self.job_id, detail) for name, law in laws.items() for detail in law()]

    @property
    def is_settled(self) -> bool:
        """Whether Celery's state of the job agrees with the record."""
        return not any(self._celery_agrees())

    def _is_ended(self) -> Iterator[str]:
        if self.end is None:
            yield f"no final event after {len(self.events)} others"

    def _ends_once(self) -> Iterator[str]:
        num_ends = sum(isinstance(event, End) for event in self.events)
        if num_ends > 1 or (num_ends == 1 and self.end is None):
            yield f"{num_ends} final events among {len(self.events)}, or not the last"

    def _is_dense(self) -> Iterator[str]:
        numbers = list(range(1, len(self.events) + 1))
        if [event.seq for event in self.events] != numbers:
            yield f"seq is not dense: {[event.seq for event in self.events]}"
        if list(self.entry_ids) != [f"{number}-0" for number in numbers]:
            yield "entry ids differ from seq"

    def _tokens_join(self) -> Iterator[str]:
        num_ids = Counter[int]()
        for token in self._tokens:
            choice = token.choice or 0
            if token.i != num_ids[choice]:
                yield f"event {token.seq} begins with token {token.i}, but {num_ids[choice]} are before it"
            num_ids[choice] = token.i + len(token.ids)

    def _vectors_once(self) -> Iterator[str]:
        """Each text has one vector, and a job that is done has all."""
        told = [number for event in self._vectors for number in event.texts]
        if len(told) != len(set(told)):
            yield f"several vectors of texts {sorted(number for number, n in Counter(told).items() if n > 1)}"
        wanted = next((event.texts for event in self.events if isinstance(event, Started)), None) or 0
        is_done = self.record.get("state") == "done"
        if set(told) - set(range(wanted)) or (is_done and len(set(told)) != wanted):
            yield f"{len(told)} vectors of {wanted} texts"

    def _epochs_rise(self) -> Iterator[str]:
        if any(after.epoch < before.epoch for before, after in pairwise(self.events)):
            yield f"an epoch goes back: {[event.epoch for event in self.events]}"
        attempts = [event.attempt for event in self.events if isinstance(event, Started)]
        if attempts != list(range(1, len(attempts) + 1)):
            yield f"attempts are not counted one by one: {attempts}"

    def _end_is_true(self) -> Iterator[str]:
        end, text = self.end, "".join(token.text for token in self._tokens)
        if end is None:
            return
        if end.n != len(self.ids) + sum(len(event.texts) for event in self._vectors):
            yield f"end says {end.n} tokens"
        if end.text_sha256 not in (None, hashlib.sha256(text.encode()).hexdigest()):
            yield "text_sha256 is not that of the text"

    def _record_agrees(self) -> Iterator[str]:
        end = self.end
        if end is not None:
            expected = {"state": final_state(end), "seq": str(end.seq), "n": str(end.n), "lease": "0"}
            found = {name: self.record.get(name) for name in expected}
            if found != expected:
                yield f"record is {found}, the end says {expected}"

    def _celery_agrees(self) -> Iterator[str]:
        """Celery's stored state and result are those of the job's record and stream."""
        if self.end is None:
            return
        state, status = CELERY_STATES.get(self.record.get("state", "")), self.celery.get("status")
        if status != state:
            says = f"{status} ({self._celery_error})" if status == "FAILURE" else status
            yield f"Celery says {says}, the record says {self.record.get('state')}"
        elif state == "SUCCESS":
            result = Result.from_events(self.events).model_dump(mode="json")
            if self.celery.get("result") != result:
                yield "Celery's result is not the fold of the stream"
        elif state == "FAILURE":
            error, expected = self._celery_error, CELERY_ERRORS.get(self.end.finish_reason)
            if error != expected:
                yield f"Celery's error is {error}, that of {self.end.finish_reason} is {expected}"

    def _is_given_up_rightly(self) -> Iterator[str]:
        """An innocent job may be given up if its workers died of others, each time soon after its start.

        One of these deaths may have come while it was prepared. Of that the stream shows only the claim.
        """
        num_deaths, num_starts = self._unsound
        has_died = num_deaths >= self.max_deaths and num_starts >= self.max_deaths - 1
        if self.is_blamed and not has_died:
            yield f"given up after {num_deaths} claims and {num_starts} starts that did not come far"

    def _is_forgotten(self) -> Iterator[str]:
        if self.immortal_keys:
            yield f"keys without a lifetime: {list(self.immortal_keys)}"

    def _was_heard_as_written(self) -> Iterator[str]:
        """A subscriber may miss events, but gets none twice, none late, and only those of the stream.

        A new subscription may repeat some: those that Redis forgot when it broke the last subscription.
        """
        for subscription in self.heard:
            left = iter(self.written)
            for number, heard in enumerate(subscription, start=1):
                if heard not in left:  # earlier ones were missed
                    kind = "again or late" if heard in self.written else "that the stream does not hold"
                    yield f"a subscriber heard, as number {number} of {len(subscription)}, an event {kind}"
                    break

    def _is_told(self) -> Iterator[str]:
        """The end and its webhook are written together, or neither."""
        end, told = self.end, self.told
        says = told and (told.id, told.state, told.finish_reason)
        expected = end and (self.job_id, final_state(end), end.finish_reason)
        if says != expected:
            yield f"its webhook says {says}, its end {expected}"

    @property
    def ids(self) -> tuple[int, ...]:
        """All recorded token ids."""
        return tuple(token_id for token in self._tokens for token_id in token.ids)

    @property
    def num_claims(self) -> int:
        """The number of claims that have written tokens or vectors of the job."""
        return len({event.epoch for event in (*self._tokens, *self._vectors)})

    @property
    def vectors(self) -> dict[int, str]:
        """The recorded vectors, by the number of their text."""
        pairs = (zip(event.texts, event.vectors, strict=True) for event in self._vectors)
        return dict(chain.from_iterable(pairs))

    @property
    def is_blamed(self) -> bool:
        """Whether it was given up for killing workers, though it kills none."""
        error = self.end and self.end.error
        return bool(error and error.code == ErrorCode.POISONED) and not self.job_id.startswith(POISONS)

    @property
    def end(self) -> End | None:
        """The last event, if it is final."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, End) else None

    @property
    def _unsound(self) -> tuple[int, int]:
        """The number of claims since the last sound attempt, including it, and of starts after it."""
        num_ids = Counter[int]()
        for token in self._tokens:
            num_ids[token.epoch] += len(token.ids)
        for event in self._vectors:
            num_ids[event.epoch] += len(event.texts)
        sound = max((epoch for epoch, n in num_ids.items() if n >= SOUND_TOKENS), default=0)
        num_starts = sum(isinstance(event, Started) and event.epoch > sound for event in self.events)
        return (self.end.epoch if self.end else 0) - max(1, sound), num_starts

    @property
    def _celery_error(self) -> str | None:
        """The type of error that Celery has stored."""
        error = self.celery.get("result")
        return error.get("exc_type") if isinstance(error, dict) else None

    @property
    def _tokens(self) -> list[Token]:
        return [event for event in self.events if isinstance(event, Token)]

    @property
    def _vectors(self) -> list[Vectors]:
        return [event for event in self.events if isinstance(event, Vectors)]


class Checker:
    """Collects the evidence from Redis."""

    def __init__(self, redis: Redis, ledger: Ledger) -> None:
        self._redis: Any = redis  # redis-py types each reply as text or bytes or nothing
        self._ledger = ledger

    def evidence(self, job_id: str, heard: Sequence[Sequence[int]] = ()) -> Evidence:
        """Read all that Redis holds of a job; `heard` is what a listener has received of it."""
        ledger = self._ledger
        keys = (ledger.job_key(job_id), ledger.events_key(job_id), ledger.result_key(job_id))
        record_key, events_key, result_key = keys
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hgetall(record_key).xrange(events_key).get(result_key)
            for key in keys:
                pipeline.ttl(key)
            record, entries, result, *ttls = pipeline.execute()
        texts = [fields[b"e"] for _, fields in entries]
        return Evidence(
            job_id,
            [entry_id.decode() for entry_id, _ in entries],
            [parse_event(text) for text in texts],
            {name.decode(): value.decode() for name, value in record.items()},
            json.loads(result or "{}"),
            [key for key, ttl in zip(keys, ttls, strict=True) if ttl == -1],
            [event_fingerprint(text) for text in texts],
            heard,
            self._webhook_of(ledger.tenant, job_id),
            self._ledger.max_deaths,
        )

    def _webhook_of(self, tenant: str, job_id: str) -> WebhookEntry | None:
        """The webhook of a job, as long as its receiver does not have it."""
        message = webhook_message_id(job_id).encode()
        (raw,) = run_call(self._redis, Outbox(tenant).entries([message]))
        return None if raw is None else WebhookEntry.parse(message, raw)

    def num_results(self, job_ids: Sequence[str]) -> int:
        """The number of these jobs for which Celery has stored a result."""
        return int(self._redis.exists(*map(self._ledger.result_key, job_ids))) if job_ids else 0

    def leftovers(self) -> list[Violation]:
        """Violations: keys that are not empty though all jobs have ended, read at one moment."""
        unacked = self._ledger.unacked_key
        sets = [*map(self._ledger.key, ("pending", "delayed", "leases", "untold")), f"{unacked}_index"]
        sets += [line.decode() for line in self._redis.keys(self._ledger.key("pending:herd.*"))]
        queues = [queue.decode() for queue in self._redis.keys("herd.*")]
        with self._redis.pipeline(transaction=True) as pipeline:
            for key in sets:
                pipeline.zcard(key)
            for queue in queues:
                pipeline.llen(queue)
            pipeline.hlen(unacked)
            sizes = pipeline.execute()
        keys = (*sets, *queues, unacked)
        return [
            Violation("nothing left", "", f"{key} holds {size}")
            for key, size in zip(keys, sizes, strict=True)
            if size
        ]
