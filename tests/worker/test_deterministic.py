"""The deterministic mode: a job's ids depend on neither its batch mates nor on crashes, bit for bit."""

import random

import pytest
import torch

from llama_herd.errors import SettingsError
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.tiling import FIXED
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.engine import Engine
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.output import Output
from llama_herd.worker.sequence import Sequence
from llama_herd.worker.settings import WorkerSettings

NUM_MIXES = 50
NUM_JOBS = 32


@pytest.fixture(scope="module")
def settings(tiny_settings: WorkerSettings) -> WorkerSettings:
    changes = {"deterministic": True, "slots": NUM_JOBS, "kv_cache_tokens": NUM_JOBS * 128}
    return tiny_settings.model_copy(update=changes)


@pytest.fixture(scope="module")
def fixed(settings: WorkerSettings) -> LoadedModel:
    return LoadedModel.load(settings, "cpu")


def sequence(model: LoadedModel, number: int) -> Sequence:
    """Job `number`: always the same prompt and parameters, greedy or drawn."""
    rng = random.Random(number)
    sampling = SamplingParams(
        max_tokens=rng.randint(2, 16),
        temperature=rng.choice([0.0, 0.7, 1.3]),
        top_k=rng.choice([0, 40]),
        top_p=rng.choice([1.0, 0.9]),
        seed=number,
    )
    prompt = "once upon a time in a village " * rng.randint(1, 3)
    return model.sequences(f"job-{number}", GenerationJob(prompt=prompt, sampling=sampling), now_ms=0)[0]


def finished(
    model: LoadedModel, settings: WorkerSettings, numbers: list[int], crashes: random.Random | None = None
) -> dict[int, list[int]]:
    """The ids of these jobs, run together; with `crashes`, some are lost on the way and resumed."""
    engine = new_engine(model, settings)
    running = {number: sequence(model, number) for number in numbers}
    for one in running.values():
        engine.submit(one)
    while engine.has_work:
        engine.step()
        if crashes is not None and crashes.random() < 0.15:
            number = crashes.choice(numbers)
            if running[number].finish_reason is None:
                running[number] = resumed(engine, model, number, running[number])
    return {number: one.ids for number, one in running.items()}


def new_engine(model: LoadedModel, settings: WorkerSettings) -> Engine:
    def ignore(outputs: list[Output]) -> None:
        """Nobody listens."""

    return model.engine(settings, ignore)


def resumed(engine: Engine, model: LoadedModel, number: int, lost: Sequence) -> Sequence:
    engine.scheduler.remove(lost)
    again = sequence(model, number)
    again.replay(lost.ids)
    engine.submit(again)
    return again


def test_random_mixes_with_crashes_give_each_job_the_ids_it_gets_alone(
    fixed: LoadedModel, settings: WorkerSettings
) -> None:
    alone = {number: finished(fixed, settings, [number])[number] for number in range(NUM_JOBS)}
    for mix in range(NUM_MIXES):
        rng = random.Random(mix)
        numbers = rng.sample(range(NUM_JOBS), rng.randint(1, NUM_JOBS))
        together = finished(fixed, settings, numbers, crashes=rng)
        assert together == {number: alone[number] for number in numbers}, f"mix {mix}"


def test_a_rows_logits_are_bit_equal_however_its_tokens_were_cut(fixed: LoadedModel) -> None:
    ids = fixed.tokenizer.encode("once upon a time in a village far away")
    whole = logits(fixed, [(0, ids)])
    pieces = logits(fixed, [(start, ids[start : start + 3]) for start in range(0, len(ids), 3)])
    assert torch.equal(whole, pieces)


def logits(model: LoadedModel, cuts: list[tuple[int, list[int]]]) -> torch.Tensor:
    """Logits after the last token, the tokens being run in these pieces, each beside a stranger."""
    it = model.cache.prefixes.reserve("it", 128, [])
    stranger = model.cache.prefixes.reserve("stranger", 128, [])
    assert it is not None
    assert stranger is not None
    for start, ids in cuts:
        beside = Chunk(stranger.pages, 0, list(range(5, 5 + len(ids))), num_logits=0)
        batch = Batch.of([beside, Chunk(it.pages, start, ids, True)], "cpu", FIXED.span_tokens)
        last = model.llama.forward(batch, model.cache)
    model.cache.pages.release("it")
    model.cache.pages.release("stranger")
    return last


@pytest.mark.parametrize("change", [{"device": "cuda:0"}, {"dtype": "bfloat16"}])
def test_it_is_refused_where_it_cannot_be_kept(settings: WorkerSettings, change: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="HERD_DETERMINISTIC"):
        LoadedModel.load(settings.model_copy(update=change), change.get("device", "cpu"))
