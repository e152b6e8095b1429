"""A forward that lacked memory is not tried again and again, and no job fails of it."""

from collections.abc import Sequence as Rows

import pytest
import torch

from llama_herd.worker.engine import size_limits
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.runner import Reading, Row
from llama_herd.worker.engine.size_limits import ForwardSize, SizeLimits
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import Collector, finish, sequence
from tests.worker.overlapping import with_layers

NUM_ROWS = 16


class NarrowRunner(ModelRunner):
    """Has memory for forwards of so many rows and tokens; notes what it ran and what failed."""

    def __init__(
        self, model: LoadedModel, num_rows: int, num_tokens: int = 10**6, num_layers: int = 0
    ) -> None:
        """`num_layers`: how much of the model it runs. Sizes are the same without any."""
        super().__init__(with_layers(model.llama, num_layers), model.cache)
        self.room = ForwardSize(num_rows, num_tokens)
        self.ran: list[ForwardSize] = []
        self.failed: list[ForwardSize] = []

    def run(self, rows: Rows[Row]) -> list[Reading]:
        size = ForwardSize.from_rows(rows)
        if size.num_rows > self.room.num_rows or size.num_tokens > self.room.num_tokens:
            self.failed.append(size)
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.ran.append(size)
        return super().run(rows)


@pytest.fixture(scope="module")
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    return tiny_settings.model_copy(update={"deterministic": True, "kv_cache_tokens": NUM_ROWS * 256})


def started(
    model: LoadedModel, runner: ModelRunner, max_tokens: int = 120, temperature: float = 0.0
) -> tuple[Engine, Collector]:
    sink = Collector()
    engine = Engine(runner, model.cache.prefixes, max_rows=NUM_ROWS, prefill=PrefillBudget(64), sink=sink)
    for number in range(NUM_ROWS):
        asked = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": temperature, "seed": number}
        engine.submit(sequence(model, f"job-{number}", prompt="a tale " * (1 + number % 3), **asked))
    return engine, sink


@pytest.mark.parametrize(
    ("num_rows", "num_halvings"),
    [
        pytest.param(3, 3, marks=pytest.mark.long),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [(1, 4), (4, 2), (8, 1), (15, 1)]),
    ],
)
def test_in_fifty_steps_a_forward_fails_no_more_often_than_it_is_halved(
    wide: LoadedModel, num_rows: int, num_halvings: int
) -> None:
    """Once with prompts, which are many tokens, and once without."""
    runner = NarrowRunner(wide, num_rows)
    engine, _ = started(wide, runner)
    for _ in range(50):
        engine.step()
    assert engine.stats.num_running == NUM_ROWS
    assert len(runner.failed) <= 2 * num_halvings


@pytest.mark.long
def test_every_job_gets_what_it_gets_with_memory_enough(wide: LoadedModel) -> None:
    engine, expected = started(wide, ModelRunner(wide.llama, wide.cache), 16, temperature=0.9)
    finish(engine)
    num_layers = len(wide.llama.blocks)
    engine, sink = started(wide, NarrowRunner(wide, 5, num_layers=num_layers), 16, temperature=0.9)
    finish(engine)
    assert sink.ids == expected.ids
    assert sink.ends == {f"job-{number}": ["length"] for number in range(NUM_ROWS)}


def test_what_failed_with_few_rows_of_many_tokens_does_not_part_many_rows_of_one(wide: LoadedModel) -> None:
    runner = NarrowRunner(wide, NUM_ROWS, num_tokens=40)
    engine, _ = started(wide, runner)
    for _ in range(20):
        engine.step()
    runner.ran.clear()
    for _ in range(5):
        engine.step()
    assert runner.failed
    assert runner.ran == [ForwardSize(NUM_ROWS, NUM_ROWS)] * 5


@pytest.mark.long
def test_more_is_tried_again_after_a_while_and_once_is_enough(
    wide: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_limits, "RETRY_FORWARDS", 40)
    runner = NarrowRunner(wide, 4)
    engine, _ = started(wide, runner)
    for _ in range(45):  # four forwards a step
        engine.step()
    at_first, again = runner.failed[:4], runner.failed[4:]
    assert [failed.num_rows for failed in at_first] == [16, 8, 16, 8]
    assert again == [ForwardSize(8, 8)] * 4
    runner.room = ForwardSize(NUM_ROWS, 10**6)
    runner.failed.clear()
    runner.ran.clear()
    for _ in range(60):
        engine.step()
    assert runner.failed == []
    assert runner.ran[0].num_rows == 4
    assert runner.ran[-1].num_rows == NUM_ROWS


def test_a_row_alone_is_always_tried(wide: LoadedModel) -> None:
    one, limits = Row.of(sequence(wide, "job"), 10_000), SizeLimits()
    limits.note_lack([one, one])
    assert limits.allow([one])
    assert not limits.allow([one, one])
