"""Who is let into the engine, and when."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from llama_herd.tasks.answers import Yours
from llama_herd.worker.attempt import Attempt
from llama_herd.worker.engine_thread import EngineThread
from llama_herd.worker.gate import Gate
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.sequence import Sequence
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.stream import Author, Recorded, Stream

CLAIM = Yours(epoch=1, n=0, seq=0, attempts=0, starts=0, due_ms=0, body="", now_ms=0)


class Desk:
    """A gate before an engine that does not step, and the jobs of a worker."""

    def __init__(self, engine: EngineThread, sequence: Callable[[str], Sequence]) -> None:
        self.engine = engine
        self.gate = Gate(engine)
        self._sequence = sequence

    def put(self, job_id: str, *, is_last: bool = False) -> Attempt:
        stream = Stream(job_id, CLAIM, Recorded.of([]), Author("w", "m"))
        attempt = Attempt(stream, [], [self._sequence(job_id)], is_last=is_last)
        self.gate.put(attempt)
        return attempt

    def end(self, attempt: Attempt) -> None:
        attempt.is_over = True
        self.gate.open()


@pytest.fixture
def desk(model: LoadedModel, tiny_settings: WorkerSettings) -> Desk:
    from llama_herd.tasks.job import GenerationJob

    engine = EngineThread(model.engine(tiny_settings, lambda outputs: None))
    return Desk(engine, lambda job_id: model.sequences(job_id, GenerationJob(prompt="a"), now_ms=0)[0])


def test_ordinary_jobs_come_in_at_once(desk: Desk) -> None:
    desk.put("one")
    desk.put("two")
    assert desk.engine.num_waiting == 2


def test_a_last_attempt_waits_for_all_others_and_they_for_its_first_token(desk: Desk) -> None:
    one, two = desk.put("one"), desk.put("two")
    suspect = desk.put("suspect", is_last=True)
    desk.put("three")
    desk.end(one)
    assert desk.engine.num_waiting == 2
    desk.end(two)
    assert desk.engine.num_waiting == 3
    suspect.first_token_s = 1.0
    desk.gate.open()
    assert desk.engine.num_waiting == 4
    assert not desk.gate.is_holding


def test_suspects_come_in_one_after_the_other(desk: Desk) -> None:
    first, second = desk.put("first", is_last=True), desk.put("second", is_last=True)
    assert desk.engine.num_waiting == 1
    first.first_token_s = 1.0
    desk.gate.open()
    assert desk.engine.num_waiting == 1, "the first still runs"
    desk.end(first)
    assert desk.engine.num_waiting == 2
    desk.end(second)


def test_a_suspect_that_ends_without_a_token_opens_the_gate(desk: Desk) -> None:
    suspect = desk.put("suspect", is_last=True)
    desk.put("mate")
    assert desk.engine.num_waiting == 1
    desk.end(suspect)
    assert desk.engine.num_waiting == 2


def test_a_job_that_is_claimed_anew_is_held_once(desk: Desk) -> None:
    runs = desk.put("runs")
    desk.put("suspect", is_last=True).is_over = True
    desk.put("suspect", is_last=True)
    desk.end(runs)
    assert desk.engine.num_waiting == 2
    assert not desk.gate.is_holding


@pytest.mark.parametrize("is_last", [False, True])
def test_what_is_cancelled_or_overdue_waits_for_nobody(desk: Desk, is_last: bool) -> None:
    desk.put("runs")
    desk.put("suspect", is_last=True)
    cancelled, overdue = desk.put("cancelled", is_last=is_last), desk.put("overdue", is_last=is_last)
    assert desk.engine.num_waiting == 1
    cancelled.sequences[0].abort = "cancelled"
    desk.gate.open()
    assert desk.engine.num_waiting == 2
    overdue.sequences[0].deadline_s = 0.0
    desk.gate.open()
    assert desk.engine.num_waiting == 3
    assert desk.gate.is_holding, "the suspect waits for its turn"


def test_two_tenants_jobs_of_the_same_id_are_two(desk: Desk) -> None:
    suspect, namesake = desk.put("same", is_last=True), desk.put("same")
    assert desk.engine.num_waiting == 1
    desk.end(suspect)
    assert desk.engine.num_waiting == 2
    desk.put("another", is_last=True)
    assert desk.engine.num_waiting == 2, "the namesake still runs"
    desk.end(namesake)
    assert desk.engine.num_waiting == 3


def test_every_job_comes_in_once_whichever_thread_brings_it(desk: Desk) -> None:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as tenants:
            list(tenants.map(desk.put, map(str, range(200))))
    finally:
        sys.setswitchinterval(before_s)
    assert desk.engine.num_waiting == 200
