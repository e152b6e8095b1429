"""Which texts a step takes, what they hold, and what that means for generations beside them."""

from pathlib import Path

import pytest
from torch.nn.functional import normalize

from llama_herd.model.shape.pooling import Pooling
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.worker.engine.runner import Row
from llama_herd.worker.engine.sequence import Sequence
from tests.closeness import assert_close
from tests.model.forwards import random_ids
from tests.model.tiny_embedder import CLOSE, LENGTHS, TEXTS, pooled
from tests.model.tiny_family import TINY_FAMILIES
from tests.worker.engine_run import finish, sequence
from tests.worker.text_engine import TextEngine, vectors_in

NUM_SLOTS, BUDGET, TEXT_TOKENS = 8, 16, 16


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = TINY_FAMILIES["qwen3"]
    return family.write_gguf(family.model(), tmp_path_factory.mktemp("qwen3") / "tiny.gguf")


@pytest.fixture
def embedder(path: Path) -> TextEngine:
    return TextEngine(path, pooling="mean", slots=NUM_SLOTS)


@pytest.fixture
def both(path: Path, embedder: TextEngine) -> TextEngine:
    """An engine that writes text, too, with few prompt tokens a step beside streams."""
    engine = TextEngine(path, slots=NUM_SLOTS, prefill_tokens=BUDGET)
    engine.model.head = embedder.model.head
    engine.engine = engine.model.engine(engine.settings, engine.outputs)
    return engine


def texts(embedder: TextEngine, num: int, job_id: str = "texts") -> list[Sequence]:
    """Sequences of a job with texts of TEXT_TOKENS each."""
    ids = tuple(tuple(random_ids(TEXT_TOKENS, seed)) for seed in range(num))
    return embedder.sequences(EmbeddingJob(text_ids=ids), job_id)


def steps_of(engine: TextEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[Row]]:
    """The rows of each step from now on."""
    steps, next_batch = list[list[Row]](), engine.engine.scheduler.next_batch

    def noted() -> list[Row]:
        steps.append(next_batch())
        return steps[-1]

    monkeypatch.setattr(engine.engine.scheduler, "next_batch", noted)
    return steps


def test_texts_of_a_step_are_computed_without_padding(embedder: TextEngine) -> None:
    """All in one step, though one of them has a single token, as a row that decodes has."""
    embedder.vectors_of_ids(TEXTS)
    figures = embedder.engine.stats.steps
    assert sum(figures.step_s.counts) == 1
    assert (figures.num_rows.total, figures.num_tokens.total) == (len(LENGTHS), sum(LENGTHS))


def test_a_text_that_needs_one_step_holds_its_pages_for_no_longer(embedder: TextEngine) -> None:
    engine, pages = embedder.engine, embedder.prefixes.pages
    engine.submit(*texts(embedder, 3 * NUM_SLOTS))
    for num_done in (NUM_SLOTS, 2 * NUM_SLOTS, 3 * NUM_SLOTS):
        engine.step()
        assert len(vectors_in(embedder.outputs)) == num_done
        assert not pages.num_held
    assert not engine.has_work


def test_each_is_beside_others_as_it_is_alone(both: TextEngine, embedder: TextEngine, path: Path) -> None:
    def told() -> list[Sequence]:
        return [sequence(both.model, f"told-{num}", "a tale " * num, max_tokens=20) for num in (1, 9)]

    both.run(*told())
    alone = both.outputs.ids
    both.run(*embedder.sequences(EmbeddingJob(text_ids=tuple(map(tuple, TEXTS)))), *told())
    assert {name: ids for name, ids in both.outputs.ids.items() if ids} == alone
    expected = normalize(pooled(TINY_FAMILIES["qwen3"].model(), TEXTS, Pooling.MEAN), dim=-1)
    assert_close(vectors_in(both.outputs), expected, atol=CLOSE, rtol=0)


def test_streams_go_on_evenly_beside_many_texts(
    both: TextEngine, embedder: TextEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a token of every step, and no such step has more tokens of texts than the budget."""
    streams = [sequence(both.model, f"told-{number}", max_tokens=50, ignore_eos=True) for number in range(3)]
    both.engine.submit(*streams)
    both.engine.step()
    steps = steps_of(both, monkeypatch)
    both.engine.submit(*texts(embedder, 250))
    finish(both.engine)
    shared = [rows for rows in steps if any(row.decodes for row in rows)]
    assert [len([row for row in rows if row.decodes]) for rows in shared] == [3] * 49
    in_texts = [sum(row.num_tokens for row in rows if not row.decodes) for rows in shared]
    assert set(in_texts) == {BUDGET}
    assert len(vectors_in(both.outputs)) == 250


def test_a_generation_behind_a_thousand_texts_of_another_tenant_is_next(
    both: TextEngine, embedder: TextEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the next slot, is the oldest soon, and has half of the steps' tokens then."""
    both.engine.scheduler.prefill.alone = 2 * TEXT_TOKENS
    for number in range(4):
        both.engine.submit(*texts(embedder, 250, f"texts-{number}"))
    both.engine.step()
    (late,) = both.sequences(GenerationJob(prompt="a tale " * 30, tenant="b"), "late")
    steps = steps_of(both, monkeypatch)
    both.engine.submit(late)
    while not both.outputs.ids["late"]:
        both.engine.step()
    num_shares = -(-len(late.prompt_ids) // TEXT_TOKENS)
    assert num_shares < len(steps) <= NUM_SLOTS // 2 + num_shares
    assert all(any(row.sequence.vector for row in rows) for rows in steps)
