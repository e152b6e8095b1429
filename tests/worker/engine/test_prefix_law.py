"""The prefix cache: jobs with the same 1,000 tokens in front compute less than a page each, to equal ids."""

import random

import pytest

from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import Admitted, StepOutput
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf

MOST_JOBS = 8
NUM_PREFIX = 1000


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> WorkerSettings:
    path = write_tiny_gguf(tmp_path_factory.mktemp("long") / "long.gguf", context_length=2048)
    # Deterministic, so that equal ids are a law and no luck.
    return WorkerSettings(model=path, slots=MOST_JOBS, kv_cache_tokens=16_384, deterministic=True, threads=1)


def jobs(num_jobs: int) -> list[GenerationJob]:
    rng = random.Random(1)
    prefix = rng.choices(range(3, 250), k=NUM_PREFIX)
    return [
        GenerationJob(
            prompt_ids=(*prefix, *rng.choices(range(3, 250), k=rng.randint(1, 23))),
            sampling=SamplingParams(max_tokens=6, temperature=rng.choice([0.0, 1.0]), seed=number),
        )
        for number in range(num_jobs)
    ]


def ids_and_prefilled(settings: WorkerSettings, num_jobs: int) -> tuple[dict[str, list[int]], list[int]]:
    """What each job got, and how many prompt tokens were left to compute at its admission."""
    model = LoadedModel.load(settings, "cpu")
    prefilled: list[int] = []

    def note(outputs: list[StepOutput]) -> None:
        started = [output.sequence for output in outputs if isinstance(output, Admitted)]
        prefilled.extend(one.num_uncached for one in sequences if one.info in started)

    engine = model.engine(settings, note)
    sequences = [model.maker.sequences(f"job-{n}", job, now_ms=0)[0] for n, job in enumerate(jobs(num_jobs))]
    for one in sequences:
        engine.submit(one)
    while engine.has_work:
        engine.step()
    return {one.job_id: one.ids for one in sequences}, prefilled


@pytest.mark.long
@pytest.mark.parametrize("num_jobs", [4, pytest.param(MOST_JOBS, marks=pytest.mark.slow)])
def test_jobs_with_the_same_prefix_compute_less_than_a_page_each_and_get_the_same_ids(
    settings: WorkerSettings, num_jobs: int
) -> None:
    ids, (first, *others) = ids_and_prefilled(settings, num_jobs)
    alone, everything = ids_and_prefilled(settings.model_copy(update={"prefix_cache": False}), num_jobs)
    assert min(everything) > NUM_PREFIX
    assert first > NUM_PREFIX
    assert len(others) == num_jobs - 1
    assert max(others) < 64
    assert ids == alone
