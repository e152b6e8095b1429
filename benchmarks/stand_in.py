"""A worker without a model: it speaks the ledger's protocol and answers at once.

    python -m benchmarks.stand_in redis://127.0.0.1:6379/0 tales

What is measured with it is everything but a worker, and tests of clients hold it up and count its answers.
A whole worker without a model, which costs more a job, is `llama_herd.testing`.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import accumulate
from struct import pack
from threading import Event as Flag, Thread
from time import monotonic
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.answers import Claimed, Emission
from llama_herd.tasks.ledger.held_jobs import EmitEntry, TenantEntry, emit, num_recorded
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import End, Event, Failure, Started, Timings, Token, Usage, Vectors
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.priority import LANES
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.tasks.settings import Settings

OWNER = "stand-in"
REPORT_S = 1.0

#: From a job's id: why it is to fail, or None.
Verdict = Callable[[str, Any], Failure | None]
#: Vectors of one event, and events of one call, roughly.
EVENT_VECTORS, MOST_ENTRIES = 16, 256


def vector_of(text: str, width: int) -> str:
    """Numbers that follow from the text, as the protocol has vectors."""
    digest = sha256(text.encode()).digest()
    some = pack("<32f", *(byte / 255 for byte in digest))
    return b64encode((some * -(-width // 32))[: 4 * width]).decode()


class StandIn:
    """Answers every job of a queue, as long as the block lasts or `run` runs.

    num_tokens: of each output. width: numbers of each vector.
    """

    def __init__(
        self,
        url: str,
        model: str = "tales",
        *,
        slots: int = 256,
        num_tokens: int = 16,
        width: int = 64,
        tenant: str = "default",
        verdict: Verdict = lambda job_id, job: None,
    ) -> None:
        self._redis: Any = connect(url)
        self._ledger = Ledger(tenant, lease_ms=60_000, worker=OWNER)
        self._reports = Reports(tenant)
        self._settings = Settings(tenant=tenant)
        self._status = WorkerStatus(name=OWNER, state="ready", model=model, device="none", slots=slots)
        self._num_tokens = num_tokens
        self._width = width
        self._verdict = verdict
        self._is_stopping = Flag()
        self._may_answer = Flag()
        self._may_answer.set()
        self._is_held = Flag()
        self._thread = Thread(target=self.run, daemon=True)
        #: Ids in the order in which they were answered, and the texts whose vectors were made.
        self.answered: list[str] = []
        self.texts: list[str] = []

    def hold(self) -> None:
        """Take no jobs for a while; returns when it no longer asks for any."""
        self._is_held.clear()
        self._may_answer.clear()
        self._is_held.wait()

    def go_on(self) -> None:
        self._may_answer.set()

    def run(self) -> None:
        report_at_s = 0.0
        while not self._is_stopping.is_set():
            with suppress(RedisError):
                if monotonic() >= report_at_s:
                    run_call(self._redis, self._reports.report_worker(self._status))
                    report_at_s = monotonic() + REPORT_S
                if self._may_answer.is_set():
                    self._answer(self._messages())
                else:
                    self._is_held.set()
                    self._may_answer.wait(0.01)

    def __enter__(self) -> Self:
        run_call(self._redis, self._reports.report_worker(self._status))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._may_answer.set()
        self._thread.join()
        self._redis.close()

    def _messages(self) -> list[bytes]:
        """The messages that wait in the queue, at most one for each slot."""
        queue = queue_name(self._status.model, self._ledger.tenant)
        first = self._redis.brpop([queue + lane for lane in LANES], timeout=0.1)
        return [first[1], *(self._redis.rpop(first[0], self._status.slots - 1) or ())] if first else []

    def _answer(self, messages: list[bytes]) -> None:
        job_ids = [json.loads(message)["headers"]["id"] for message in messages]
        queue = queue_name(self._status.model)
        claims = run_calls(self._redis, [self._ledger.claim(one, OWNER, queue=queue) for one in job_ids])
        entries: list[EmitEntry] = []
        for job_id, claim in zip(job_ids, claims, strict=True):
            if isinstance(claim, Claimed):
                entries += self._entries(job_id, claim)
                self.answered.append(job_id)
            if len(entries) >= MOST_ENTRIES:
                self._emit(entries)
                entries = []
        self._emit(entries)

    def _emit(self, entries: list[EmitEntry]) -> None:
        """Record events, and end those of their jobs that were cancelled meanwhile."""
        if not entries:
            return
        own = [TenantEntry(self._ledger, entry) for entry in entries]
        answers = zip(entries, run_call(self._redis, emit(OWNER, own, self._ledger)), strict=True)
        refused = {(one.job_id, one.epoch): told for one, told in answers if told.kind is Emission.CANCELLED}
        ends = [
            End(
                seq=told.seq + 1,
                finish_reason="cancelled",
                n=told.n,
                attempts=1,
                worker=OWNER,
                job=job_id,
                epoch=epoch,
            )
            for (job_id, epoch), told in refused.items()
        ]
        self._emit([EmitEntry.from_event(end, end.n) for end in ends])

    def _entries(self, job_id: str, claim: Claimed) -> list[EmitEntry]:
        job, n = parse_job(claim.body, self._settings), self._num_tokens
        failure = self._verdict(job_id, job)
        if isinstance(job, EmbeddingJob):
            return self._vector_entries(job_id, claim, job.texts or (), self._width, failure)
        if isinstance(job, RankingJob):
            return self._vector_entries(job_id, claim, job.documents, 1, failure)
        of_job = {"job": job_id, "epoch": claim.epoch}
        model, seed = self._status.model, job.sampling.seed or 0
        started = Started(
            at_ms=claim.now_ms, seq=claim.seq + 1, attempt=1, worker=OWNER, model=model, seed=seed, **of_job
        )
        text = f"{job.prompt}: {' '.join(map(str, range(n)))}"
        token = Token(seq=claim.seq + 2, i=claim.n, ids=tuple(range(n)), text=text, **of_job)
        end = End(
            seq=claim.seq + 3,
            finish_reason="error" if failure else "length",
            error=failure,
            n=claim.n + n,
            attempts=1,
            worker=OWNER,
            usage=Usage(prompt_tokens=4, completion_tokens=n, total_tokens=4 + n),
            timings=Timings(ttft_s=0.01),
            **of_job,
        )
        return [
            EmitEntry.from_event(started, claim.n),
            EmitEntry.from_event(token, claim.n),
            EmitEntry.from_event(end, claim.n + n),
        ]

    def _vector_entries(
        self, job_id: str, claim: Claimed, texts: Sequence[str], width: int, failure: Failure | None
    ) -> list[EmitEntry]:
        of_job = {"job": job_id, "epoch": claim.epoch}
        num, model = len(texts), self._status.model
        events: list[Event] = [
            Started(
                at_ms=claim.now_ms,
                seq=claim.seq + 1,
                attempt=1,
                worker=OWNER,
                model=model,
                seed=0,
                texts=num,
                **of_job,
            )
        ]
        if failure is None:
            self.texts += texts
        for first in range(0, 0 if failure else num, EVENT_VECTORS):
            some = range(first, min(num, first + EVENT_VECTORS))
            vectors = tuple(vector_of(texts[at], width) for at in some)
            seq = claim.seq + 1 + len(events)
            events.append(Vectors(seq=seq, texts=tuple(some), vectors=vectors, **of_job))
        end = End(
            seq=claim.seq + 1 + len(events),
            finish_reason="error" if failure else "stop",
            error=failure,
            n=0 if failure else num,
            attempts=1,
            worker=OWNER,
            usage=Usage(prompt_tokens=num, completion_tokens=0, total_tokens=num),
            **of_job,
        )
        counts = accumulate((num_recorded(event) for event in events), initial=claim.n)
        return [EmitEntry.from_event(event, n) for event, n in zip((*events, end), counts, strict=True)]


if __name__ == "__main__":
    with Redis.from_url(sys.argv[1]) as server:
        server.ping()
    StandIn(sys.argv[1], *sys.argv[2:3]).run()
