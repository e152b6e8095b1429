"""Tiny models that embed and rank, and what each makes of texts that nothing disturbs."""

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from llama_herd.model.cache import Cache
from llama_herd.model.embedder import Embedder
from llama_herd.model.files.open_model import open_model
from llama_herd.model.llama2 import Llama
from llama_herd.model.reranker import Reranker
from llama_herd.model.shape.pooling import Pooling
from llama_herd.model.tiling import FIXED
from tests.model import test_embedder, test_reranker
from tests.model.tiny_family import TINY_FAMILIES

#: What a model makes of texts, and the name by which it is served.
TextKind = Literal["embed", "rank"]

TEXT_KINDS: tuple[TextKind, ...] = get_args(TextKind)

#: Two texts a step, so that a job lasts for many.
TEXT_SETTINGS: dict[str, Any] = {"slots": 2, "kv_cache_tokens": 2048, "dtype": "float32"}

TextModels = Mapping[TextKind, Path]


def write_text_models(folder: Path) -> TextModels:
    """A model for each kind."""
    family = TINY_FAMILIES["qwen3"]
    model = family.model()
    return {
        "embed": test_embedder.write_gguf(family, model, folder / "embed.gguf", Pooling.LAST),
        "rank": test_reranker.write_gguf(family, model, folder / "rank.gguf"),
    }


def undisturbed_vectors(models: TextModels, fields: Mapping[str, Any]) -> list[str]:
    """The vectors of a job with texts, in Base64: by its model in this process, without queue and worker."""
    with open_model(models[fields["kind"]]) as file:
        llama = Llama.load(file, tiling=FIXED)
        cache = Cache(llama.config, num_pages=64)
        if fields["kind"] == "embed":
            found = Embedder.load(file, llama, cache).vectors(fields["texts"])
        else:
            with Reranker.load(file, llama, cache) as reranker:
                found = reranker.logits(fields["query"], fields["documents"]).unsqueeze(1)
    return [b64encode(vector.numpy().astype("<f4").tobytes()).decode() for vector in found]
