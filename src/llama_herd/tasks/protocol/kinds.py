"""The kinds of jobs: tokens that continue a prompt, and vectors of texts."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.terms import fields_of
from llama_herd.tasks.settings import Settings

Job: TypeAlias = GenerationJob | EmbeddingJob


def parse_job(data: Job | Mapping[str, Any] | str | bytes, settings: Settings) -> Job:
    """Check a job of any kind from outside; without `kind` it is a generation. Raises InvalidJob."""
    fields = fields_of(data)
    return (EmbeddingJob if "kind" in fields else GenerationJob).parse(fields, settings)
