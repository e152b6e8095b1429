"""A worker without a model: it speaks the ledger's protocol and answers at once.

    python -m benchmarks.stand_in redis://127.0.0.1:6379/0 tales

What is measured with it is everything but a worker, and tests of clients hold it up and count its answers.
A whole worker without a model, which costs more a job, is `llama_herd.testing`.
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event as Flag, Thread
from time import monotonic
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.answers import Claimed
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.events import End, Failure, Started, Timings, Token, Usage
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.priority import LANES
from llama_herd.tasks.protocol.worker_status import WorkerStatus

OWNER = "stand-in"
REPORT_S = 1.0

#: From a job's id: why it is to fail, or None.
Verdict = Callable[[str, GenerationJob], Failure | None]


class StandIn:
    """Answers every job of a queue with `num_tokens` tokens, as long as the block lasts or `run` runs."""

    def __init__(
        self,
        url: str,
        model: str = "tales",
        *,
        slots: int = 256,
        num_tokens: int = 16,
        tenant: str = "default",
        verdict: Verdict = lambda job_id, job: None,
    ) -> None:
        self._redis: Any = connect(url)
        self._ledger = Ledger(tenant, lease_ms=60_000, worker=OWNER)
        self._reports = Reports(tenant)
        self._status = WorkerStatus(name=OWNER, state="ready", model=model, device="none", slots=slots)
        self._num_tokens = num_tokens
        self._verdict = verdict
        self._is_stopping = Flag()
        self._may_answer = Flag()
        self._may_answer.set()
        self._is_held = Flag()
        self._thread = Thread(target=self.run, daemon=True)
        #: Ids in the order in which they were answered.
        self.answered: list[str] = []

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
        if entries:
            run_call(self._redis, self._ledger.emit(OWNER, entries))

    def _entries(self, job_id: str, claim: Claimed) -> list[EmitEntry]:
        job, n = GenerationJob.model_validate_json(claim.body), self._num_tokens
        failure = self._verdict(job_id, job)
        of_job = {"job": job_id, "epoch": claim.epoch}
        model, seed = self._status.model, job.sampling.seed or 0
        started = Started(seq=claim.seq + 1, attempt=1, worker=OWNER, model=model, seed=seed, **of_job)
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


if __name__ == "__main__":
    with Redis.from_url(sys.argv[1]) as server:
        server.ping()
    StandIn(sys.argv[1], *sys.argv[2:3]).run()
