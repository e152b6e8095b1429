"""Tiny models that embed and rank, and what each makes of texts that nothing disturbs."""

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from llama_herd.model.shape.pooling import Pooling
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.settings import Settings
from tests.model.tiny_family import TINY_FAMILIES
from tests.worker.text_engine import TextEngine

#: What a model makes of texts, and the name by which it is served.
TextKind = Literal["embed", "rank"]

TEXT_KINDS: tuple[TextKind, ...] = get_args(TextKind)

#: Two texts a step, so that a job lasts for many.
TEXT_SETTINGS: dict[str, Any] = {"slots": 2, "kv_cache_tokens": 2048, "dtype": "float32"}

TextModels = Mapping[TextKind, Path]


def write_text_models(folder: Path) -> TextModels:
    """A model for each kind."""
    from tests.model import tiny_embedder, tiny_reranker  # which need packages that a card's machine lacks

    family = TINY_FAMILIES["qwen3"]
    model = family.model()
    return {
        "embed": tiny_embedder.write_gguf(family, model, folder / "embed.gguf", Pooling.LAST),
        "rank": tiny_reranker.write_gguf(family, model, folder / "rank.gguf"),
    }


def undisturbed_vectors(models: TextModels, fields: Mapping[str, Any]) -> list[str]:
    """The vectors of a job with texts, in Base64: by an engine in this process, without queue and worker."""
    with TextEngine(models[fields["kind"]], deterministic=True) as engine:
        found = engine.floats(parse_job(fields, Settings()))
    return [b64encode(vector.numpy().astype("<f4").tobytes()).decode() for vector in found]
