"""The jobs of a run."""

from itertools import islice

import pytest

from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.settings import Settings
from tests.chaos.harness.mix import mixed_jobs
from tests.chaos.harness.text_models import TEXT_KINDS


@pytest.mark.long
def test_the_seed_repeats_the_jobs_and_all_are_valid() -> None:
    one, other = (list(islice(mixed_jobs(seed=3, max_tokens=50), 100)) for _ in range(2))
    assert one == other != list(islice(mixed_jobs(seed=4, max_tokens=50), 100))
    parsed = [GenerationJob.parse(fields, Settings()) for fields in one]
    assert {job.sampling.max_tokens for job in parsed} <= set(range(25, 51))
    assert {job.sampling.temperature == 0 for job in parsed} == {True, False}
    assert any(job.sampling.stop for job in parsed)
    assert {job.output_form and job.output_form.kind for job in parsed} == {None, "json", "regex"}
    assert any(job.sampling.repetition_penalty != 1 for job in parsed)


def test_where_models_for_texts_are_served_jobs_of_their_kinds_are_among_the_others() -> None:
    some = list(islice(mixed_jobs(3, 50, TEXT_KINDS), 100))
    assert {type(parse_job(fields, Settings())) for fields in some} == {
        GenerationJob,
        EmbeddingJob,
        RankingJob,
    }
    assert [fields for fields in some if "kind" not in fields] == list(islice(mixed_jobs(3, 50), 75))
