"""Jobs of documents that are ranked, and the order of ranks."""

from typing import Any

import pytest

from llama_herd.errors import InvalidJob
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.ranking_job import Rank, RankingJob, best_first, ranking_sources
from llama_herd.tasks.protocol.text_job import MAX_TEXTS
from llama_herd.tasks.settings import Settings

SETTINGS = Settings(max_prompt_bytes=1000)
JOB = {"kind": "rank", "query": "who spits?", "documents": ["llamas", "alpacas"]}


def test_a_job_is_what_it_was_in_its_record() -> None:
    job = parse_job({**JOB, "priority": -1}, SETTINGS)
    assert isinstance(job, RankingJob)
    assert parse_job(job.to_json(), SETTINGS) == parse_job(job, SETTINGS) == job
    assert (job.num_texts, job.num_prompt_bytes) == (2, 2 * 10 + 6 + 7)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"query": ""}, "query: must not be empty"),
        ({"query": None}, "query: "),
        ({"documents": []}, "documents: must not be empty"),
        ({"documents": ["a", ""]}, "documents.1: must not be empty"),
        ({"documents": ["a\0"]}, "documents.0: must not contain a NUL character"),
        ({"documents": ["a"] * (MAX_TEXTS + 1)}, f"at most {MAX_TEXTS} items, got {MAX_TEXTS + 1}"),
        (
            {"documents": ["a" * 500, "b" * 481]},
            "documents: all texts together must be at most 1000 bytes, got 1001",
        ),
        ({"texts": ["a"]}, "texts: unknown field"),
        ({"kind": "paint"}, "kind: must be embed or rank, or absent"),
        ({"kind": ["rank"]}, "kind: must be embed or rank, or absent"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_job({**JOB, **fields}, SETTINGS)
    assert words in str(caught.value)


def test_many_documents_become_jobs_with_the_query_each() -> None:
    documents = [f"document {number}" for number in range(2 * MAX_TEXTS + 1)]
    jobs = [parse_job(one, Settings()) for one in ranking_sources("x", documents, 10_000)]
    assert all(isinstance(one, RankingJob) and one.num_prompt_bytes <= 10_000 for one in jobs)
    assert [text for one in jobs if isinstance(one, RankingJob) for text in one.documents] == documents


def test_documents_are_sorted_by_logits_since_scores_may_be_equal() -> None:
    logits = [40.0, -1000.0, 41.0, 0.0]
    ranks = best_first(logits, None)
    assert [one.index for one in ranks] == [2, 0, 3, 1]
    assert [one.score for one in ranks] == [1.0, 1.0, 0.5, 0.0]
    assert best_first(logits, 1) == [Rank(2, 41.0)]
