"""Jobs know an engine by its interface: any that has it can stand behind them, also where no torch is."""

import subprocess
import sys

import pytest
from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.result import Result
from llama_herd.testing.answer import Answer
from llama_herd.testing.scripted_model import ScriptedModel
from llama_herd.worker import process
from llama_herd.worker.engine.interface import Sink
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.worker.fake_engine import FakeEngine
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import JOB, end_of

IMPORT_ALL = """
import importlib, pkgutil, sys
import llama_herd.worker.jobs as room
names = [f"{room.__name__}.{one.name}" for one in pkgutil.iter_modules(room.__path__)]
print(len(list(map(importlib.import_module, names))), *sys.modules)
"""


class ForeignModel:
    """The words of a scripted model, and an engine that always says the same three of them."""

    needs_warm_up = True

    def __init__(self, settings: WorkerSettings) -> None:
        words = ScriptedModel(settings, lambda asked: Answer(), lambda sequence, num_tokens: True)
        self.plan = words.plan
        self.maker = words.maker

    def job_engine(self, settings: WorkerSettings, sink: Sink) -> FakeEngine:
        self.engine = FakeEngine(sink, [7, 8, 9])
        return self.engine

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.redis
def test_a_job_runs_on_an_engine_that_is_not_ours(
    redis: Redis,
    redis_url: str,
    tiny_settings: WorkerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "device", lambda: "cpu")
    settings = tiny_settings.model_copy(update={"redis_url": redis_url})
    foreign = ForeignModel(settings)
    service = Service(foreign, settings, "worker@test")
    service.start_threads()
    try:
        run_call(redis, Ledger().submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
        service.take(SentMessage("job"))
        wait_until(lambda: foreign.engine.stats.has_work, "it is submitted")

        def is_over() -> bool:
            foreign.engine.step()
            return end_of(redis, Ledger(), "job") is not None

        wait_until(is_over, "the end of the job")
        events = run_call(redis, Ledger().read("job"))
        result = Result.from_events(events)
        assert (result.finish_reason, result.ids) == ("length", (7, 8, 9))
    finally:
        service.drain(0.0, lambda: None)


@pytest.mark.long
def test_no_module_of_the_room_needs_torch() -> None:
    # In a process of its own, since others have imported torch here.
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    num_modules, *imported = done.stdout.split()
    assert int(num_modules) > 10
    assert "llama_herd.worker.engine.interface" in imported
    assert "torch" not in imported
