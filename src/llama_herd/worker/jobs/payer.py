"""Payer: tells Celery of ended jobs of which nobody else does."""

import threading
from contextlib import suppress

from redis.exceptions import RedisError, ResponseError

from llama_herd.tasks.ledger.answers import OwedJob
from llama_herd.tasks.ledger.redis_call import run_calls
from llama_herd.worker.broker.delivery import Debt
from llama_herd.worker.broker.result_backend import without_retries
from llama_herd.worker.broker.result_server import RESULT_SERVER
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

INTERVAL_S = 1.0
#: The same where results lie beside the jobs: what no worker had when it ended can wait.
UNHURRIED_INTERVAL_S = 3.0
#: Most jobs that are handed to the finisher at a time: those that end now come behind them.
MAX_DEBTS = 256
#: Another worker takes a job that was not settled for this long.
AGAIN_MS = 15_000


class Payer(threading.Thread):
    """Hands to the finisher what is due, a part each time. Any worker of a tenant may.

    These are jobs whose result was not taken by a Redis of its own, which is there again or no longer the one
    of the results; and jobs that ended while they waited, whose message may be far behind, or gone.
    """

    def __init__(self, tenancies: Tenancies, finisher: Finisher) -> None:
        super().__init__(name="payer", daemon=True)
        self._redis = tenancies.redis
        self._tenancies = tenancies
        self._finisher = finisher
        self._is_stopping = False
        self._is_asked = threading.Event()

    def stop(self) -> None:
        """Ask the thread to stop; returns at once."""
        self._is_stopping = True
        self._is_asked.set()

    def look_soon(self) -> None:
        """Look at once what is due; any thread may ask."""
        self._is_asked.set()

    def run(self) -> None:
        first = self._tenancies.first
        interval_s = INTERVAL_S if first.settings.keeps_results_elsewhere else UNHURRIED_INTERVAL_S
        while True:
            self._is_asked.wait(interval_s)
            self._is_asked.clear()
            if self._is_stopping:
                return
            with suppress(RedisError):  # the publisher logs what it is
                if RESULT_SERVER.look(without_retries(first.app.backend.client), first.ledger.results_prefix):
                    self._pay()

    def _pay(self) -> None:
        """Hand on what is due, of each tenant as much as of the others."""
        each = list(self._tenancies)
        if (num := MAX_DEBTS - self._finisher.num_waiting) <= 0:
            return
        share = max(1, num // len(each))
        answers = run_calls(self._redis, [one.ledger.owed(share, AGAIN_MS) for one in each])
        for tenancy, answer in zip(each, answers, strict=True):
            for owed in () if isinstance(answer, ResponseError) else answer:
                self._hand_on(tenancy, owed)

    def _hand_on(self, tenancy: Tenancy, owed: OwedJob) -> None:
        debt = Debt(tenancy.app, owed.job_id, owed.envelope)
        line = tenancy.author.line(owed.job_id, None, debt.trace_id)
        self._finisher.settle(tenancy, owed.job_id, [debt], line)
