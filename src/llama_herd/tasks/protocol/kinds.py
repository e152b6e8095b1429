"""The kinds of jobs: tokens that continue a prompt, vectors of texts, and ranks of documents."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.terms import fields_of
from llama_herd.tasks.settings import Settings

Job: TypeAlias = GenerationJob | EmbeddingJob | RankingJob

_OF_TEXTS: Mapping[object, type[EmbeddingJob | RankingJob]] = {"embed": EmbeddingJob, "rank": RankingJob}


def parse_job(data: Job | Mapping[str, Any] | str | bytes, settings: Settings) -> Job:
    """Check a job of any kind from outside; without `kind` it is a generation. Raises InvalidJob."""
    fields = fields_of(data)
    if "kind" not in fields:
        return GenerationJob.parse(fields, settings)
    kind = fields["kind"]
    if not isinstance(kind, str) or kind not in _OF_TEXTS:
        raise InvalidJob([FieldError("kind", f"must be {' or '.join(map(str, _OF_TEXTS))}, or absent")])
    return _OF_TEXTS[kind].parse(fields, settings)
