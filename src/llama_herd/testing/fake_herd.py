"""FakeHerd: a Redis and workers without a model, for a test."""

import os
import re
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

from redis import Redis

from llama_herd.errors import BadInput, HerdError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.local.worker_process import WorkerProcess, settings_at
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.client.arguments import is_model
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection.redis_url import masked
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.given import checked_items
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.tasks.settings import BUNDLED_MODEL_NAME, Settings, shortened
from llama_herd.testing.script import AskedJob, Condition, Reply, Script
from llama_herd.testing.script_server import ScriptServer
from llama_herd.worker.settings import WorkerSettings

START_S = 30.0
CANCEL_S = 10.0
POLL_S = 0.01

#: Shorter than that of real workers: a test that lets one die waits for the end of it.
LEASE_MS = 1000

#: Where kombu notes which queues there are, at which producers look only once; and the reports of workers.
_LASTING = re.compile(rb"_kombu\.binding|herd:[^:{]+:worker:")


class FakeHerd:
    """Workers that answer by a script, each with a model's name, and the Redis that they read.

        with FakeHerd(["llama-3"]) as herd:
            herd.answer("Paris.", to="capital of France")
            assert service_that_asks(herd.url) == "Paris."

    All but the model is as in any herd: queue, streams, results, links, batches, cancels, deadlines. On Linux
    it ends with the thread that started it.
    """

    def __init__(
        self, models: Sequence[str] = (BUNDLED_MODEL_NAME,), *, redis_url: str = "", **settings: Any
    ) -> None:
        """redis_url: a Redis database that is empty, and is emptied; without it one is started.

        settings: of the workers, as in `WorkerSettings`. Raises BadInput.
        """
        self.models = _checked_models(models)
        if redis_url != "":
            Settings.read(redis_url=redis_url)
        for name in settings.keys() - WorkerSettings.model_fields:
            meant = did_you_mean(close_names(name, WorkerSettings.model_fields))
            raise BadInput(f"{name}: is no setting of a worker{meant}")
        if settings.get("tenants"):
            raise BadInput("tenants: the workers of a fake herd have one. Fix: tenant")
        self._redis_url = redis_url
        self._settings = {"lease_ms": LEASE_MS, **settings}
        self._script = Script()
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """The address of its Redis."""
        return self._url

    @property
    def jobs(self) -> Sequence[AskedJob]:
        """The jobs that came since the last reset, each once, in order."""
        return self._script.jobs

    @property
    def unanswered(self) -> Sequence[AskedJob]:
        """Those for which no answer was found; each has failed."""
        return self._script.unanswered

    @property
    def problems(self) -> Sequence[Exception]:
        """What functions that make answers have raised; the job of each has failed."""
        return self._script.problems

    def answer(self, *replies: Reply, to: Condition = None, model: str | None = None) -> None:
        """Say what jobs are answered from now on: see `Script.answer`. What was said last counts first."""
        if model is not None and model not in self.models:
            raise BadInput(f"model={shortened(model)}: this herd has {', '.join(self.models)}")
        self._script.answer(*replies, to=to, model=model)

    @cached_property
    def client(self) -> Client:
        """A client of its own, for what a test itself asks."""
        return self._stack.enter_context(Client(self.url, tenant=self._settings.get("tenant")))

    @property
    def log(self) -> str:
        """What its workers have logged."""
        return self._worker.log

    def reset(self) -> None:
        """Forget all answers, cancel what is not over, and leave Redis as at the start.

        Raises WorkerDied, with the end of the log, if the workers have ended by themselves.
        """
        self._worker.check()
        for model in self.models:
            self.client.cancel_jobs(model=model)
            self._redis.delete(*lists_of(queue_name(model, self._tenant)))  # no worker is to take these now
        until_s = monotonic() + CANCEL_S
        while self._is_busy() and monotonic() < until_s:
            sleep(POLL_S)
        left = [key for key in self._keys() - self._kept if not _LASTING.match(key)]
        if left:
            self._redis.delete(*left)
        self._script.clear()

    def start(self) -> Self:
        """Start all, and return when each worker takes jobs. Raises HerdError."""
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fake-herd-")))
            self._url = self._redis_url or self._stack.enter_context(EmbeddedRedis()).url
            self._redis: Redis = self._stack.enter_context(Redis.from_url(self._url))
            if self._redis_url:
                self._stack.enter_context(_emptied(self._redis, self._url))
            self._stack.enter_context(ScriptServer(self._script, folder / "script"))
            self._worker = self._stack.enter_context(self._running(folder))
            self._wait_until_ready()
            self._kept = self._keys()
            on_failure.pop_all()
        return self

    def _is_busy(self) -> bool:
        """Whether jobs run or wait, or Celery has not heard of the end of one whose message a worker has.

        Those for a model that is not here have no worker, and would wait for ever.
        """
        if any(self.client.count_jobs(model=model) for model in self.models):
            return True
        keys = Keys(self._tenant)
        in_hand: list[Any] = self._redis.hvals(keys.key("unacked"))
        messages = b"".join(in_hand)
        before, _, after = keys.job_key("*").encode().partition(b"*")
        jobs = self._redis.scan_iter(keys.job_key("*"), count=1000) if messages else ()
        held = [key for key in jobs if key.removeprefix(before).removesuffix(after) in messages]
        with self._redis.pipeline(transaction=False) as asked:
            for key in held:
                asked.hmget(key, ["state", "settled"])
            ends = asked.execute()
        return any(state not in (None, b"purged") and not is_settled for state, is_settled in ends)

    def _keys(self) -> set[bytes]:
        return set(self._redis.scan_iter(count=1000))

    def close(self) -> None:
        """End all of it. No process and no thread is left."""
        self._stack.close()
        self.__dict__.pop("client", None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _running(self, folder: Path) -> Iterator[WorkerProcess]:
        given = {"device": "cpu", "model": BUNDLED_MODEL, **self._settings}
        settings = settings_at(WorkerSettings.read(**given), self._url)
        self._tenant = settings.tenant
        command = ["llama_herd.testing.fake_worker", str(folder / "script"), *self.models]
        worker = WorkerProcess(settings, "fake herd", folder / "log", command, cwd=folder).start()
        try:
            yield worker
        finally:
            with suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)  # it leads its own group
            worker.process.wait()

    def _wait_until_ready(self) -> None:
        until_s = monotonic() + START_S
        while {one.model for one in self.client.workers() if one.state == "ready"} < set(self.models):
            self._worker.check()
            if monotonic() > until_s:
                raise HerdError(f"no worker was ready within {START_S:.0f} s. The log:\n{self._worker.log}")
            sleep(POLL_S)


def _checked_models(models: Sequence[str]) -> tuple[str, ...]:
    """The names of models, each once. Raises BadInput."""
    wanted = "names such as llama-3"
    names = list(checked_items("models", models, f"a list of {wanted}"))
    if wrong := [one for one in names if not is_model(one)]:
        raise BadInput(f"models: must be {wanted}, got {shortened(wrong[0])}")
    if not names:
        raise BadInput(f"models: must be {wanted}, got none")
    return tuple(dict.fromkeys(names))


@contextmanager
def _emptied(redis: Redis, url: str) -> Iterator[None]:
    """A database that is empty, and is so again behind the block. Raises BadInput."""
    if num_keys := redis.dbsize():
        raise BadInput(
            f"{masked(url)} has {num_keys} keys, and tests would delete them. Fix: name an empty database, "
            "by another number at the end of the address, or leave out redis_url"
        )
    try:
        yield
    finally:
        redis.flushdb()
