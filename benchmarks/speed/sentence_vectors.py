"""sentence-transformers in the fastest type, not compiled: `sentence_vectors.py FILE THREADS ROWS CACHE`.

Runs in the environment that `make bench-peers` makes. Beside FILE lies its shape as
transformers calls it; the weights are random here as there.
"""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from benchmarks.speed.child import Room, serve_texts

#: What `encode` computes at once unless told otherwise.
BATCH_TEXTS = 32


class SentenceVectors:
    def __init__(self, room: Room) -> None:
        torch.set_num_threads(room.threads)
        dtype = sys.argv[5]
        with TemporaryDirectory() as folder:
            self._model = _random_model(room.path.with_suffix(".json"), Path(folder), getattr(torch, dtype))
        self.facts: dict[str, Any] = {"version": version("sentence-transformers"), "dtype": dtype}

    @torch.inference_mode()
    def texts_s(self, texts: Sequence[list[int]]) -> float:
        started_s = perf_counter()
        for first in range(0, len(texts), BATCH_TEXTS):
            ids = torch.tensor(texts[first : first + BATCH_TEXTS])  # (B, T): all are of one length
            self._model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"]
        return perf_counter() - started_s


def _random_model(config: Path, folder: Path, dtype: torch.dtype) -> SentenceTransformer:
    """A model of random weights by its config.json, which sentence-transformers reads from a folder."""
    AutoModel.from_config(
        AutoConfig.for_model(**json.loads(config.read_text())), dtype=dtype
    ).save_pretrained(folder)
    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<unk>").save_pretrained(folder)
    transformer = Transformer(str(folder), model_kwargs={"dtype": dtype})
    width = transformer.get_word_embedding_dimension()
    return SentenceTransformer(
        modules=[transformer, Pooling(width, "lasttoken"), Normalize()], device="cpu"
    ).eval()


if __name__ == "__main__":
    serve_texts(SentenceVectors)
