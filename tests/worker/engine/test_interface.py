"""Whatever has the engine's interface can run a job, also where no torch is."""

import subprocess
import sys

import pytest

from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.interface import JobEngine, SequenceInfo, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from tests.worker.fake_engine import FakeEngine

PIECES = [b"", b"Once", b" upon", b" a"]


def sequence(job_id: str, max_tokens: int = 3) -> Sequence:
    """Of a job whose start is not on record yet."""
    return Sequence(
        job_id=job_id,
        prompt_ids=[1],
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        max_length=64,
        eos_ids=frozenset({0}),
        detokenizer=Detokenizer(PIECES),
        is_confirmed=False,
    )


class Desk:
    """One who has an engine do jobs, and knows of it only what its interface says."""

    def __init__(self) -> None:
        self.told: list[StepOutput] = []
        self.fake = FakeEngine(self._take, [1, 2, 3])
        self.engine: JobEngine = self.fake
        self.engine.start()

    def _take(self, outputs: list[StepOutput]) -> None:
        """As a publisher does: a job is computed once its start is on record."""
        self.told += outputs
        self.engine.confirm([output.sequence for output in outputs if output.has_started])

    def text_of(self, info: SequenceInfo) -> str:
        return "".join(output.text for output in self.told if output.sequence is info)

    def ends_of(self, info: SequenceInfo) -> list[str]:
        return [one.finish_reason for one in self.told if one.sequence is info and one.finish_reason]


def test_a_job_runs_from_its_submission_to_its_end() -> None:
    desk, one = Desk(), sequence("job")
    desk.engine.submit(one)
    while desk.engine.stats.has_work:
        desk.fake.step()
    assert (desk.text_of(one.info), desk.ends_of(one.info)) == ("Once upon a", ["length"])
    assert desk.engine.stats.steps.num_drawn_tokens == 3
    desk.engine.stop()
    assert not desk.engine.is_alive()


def test_a_job_ends_as_it_is_told_and_a_dropped_one_silently() -> None:
    desk, cancelled, dropped = Desk(), sequence("cancelled"), sequence("dropped")
    desk.engine.submit(cancelled)
    desk.engine.submit(dropped)
    desk.fake.step()
    desk.engine.abort([cancelled.info], "cancelled")
    desk.engine.abort([dropped.info], "dropped")
    desk.fake.step()
    assert (desk.text_of(cancelled.info), desk.ends_of(cancelled.info)) == ("Once", ["cancelled"])
    assert (desk.text_of(dropped.info), desk.ends_of(dropped.info)) == ("Once", [])
    assert not desk.engine.stats.has_work


@pytest.mark.long
def test_it_needs_no_torch() -> None:
    # In a process of its own, since others have imported torch here.
    show = "import tests.worker.engine.test_interface, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "redis", "celery", "kombu"} & set(done.stdout.split())
