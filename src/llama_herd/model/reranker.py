"""Reranker: how well documents answer a query, by a model whose files say how.

Shapes: N documents, C hidden size, L labels: one or two.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from llama_herd.errors import ModelFileError
from llama_herd.model.cache import Cache
from llama_herd.model.files.model_file import LABELS_NAME, ModelFile
from llama_herd.model.llama2 import Llama
from llama_herd.model.shape.purpose import Ranks
from llama_herd.model.text.chat import Chat, ChatTemplates
from llama_herd.model.text.template_files import DEFAULT
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.texts import STEP_TOKENS, Text, TextRun, num_common
from llama_herd.model.weights.linear import dense_matrix
from llama_herd.model.weights.weight import Weight


@dataclass(frozen=True, eq=False)
class Reranker(AbstractContextManager["Reranker"]):
    """A model that ranks, with its cache, and the helper process that renders its template.

    with open_model("Qwen3-Reranker-0.6B") as file:
        llama = Llama.load(file)
        reranker = Reranker.load(file, llama, Cache(llama.config, num_pages=64))
    with reranker:
        reranker.logits("Do llamas spit?", ["Llamas spit.", "Alpacas hum."]).sigmoid()  # (2,)
    """

    llama: Llama
    cache: Cache
    templates: ChatTemplates
    purpose: Ranks
    labels: Tensor  # (L, C) float32: the head's rows of the labels

    @classmethod
    def load(cls, file: ModelFile, llama: Llama, cache: Cache) -> Self:
        """Take a loaded model. Raises ModelFileError, with the fix, when it is not one that ranks."""
        purpose, source = file.purpose, file.metadata.source
        if not isinstance(purpose, Ranks):
            problem = f"{purpose.sentence}, its files say nothing of ranks"
            raise ModelFileError(f"{source}: {problem}. Take a reranker, or set HERD_POOLING=rank.")
        tokenizer = file.read_tokenizer()
        weight = _label_weight(file, _label_ids(purpose, tokenizer, source))
        template = purpose.template or tokenizer.chat_templates.get(DEFAULT, "")
        if not template:
            raise ModelFileError(f"{source}: has no chat template, which is needed to rank. Fetch it again.")
        templates = ChatTemplates({DEFAULT: template}, tokenizer, file.read_control_tokens(tokenizer))
        return cls(llama, cache, templates, purpose, dense_matrix([weight], cache.device, torch.float32))

    def logits(self, query: str, documents: Sequence[str], *, step_tokens: int = STEP_TOKENS) -> Tensor:
        """How well each document answers the query (N,), float32: sort by these.

        Their `sigmoid()` is a score from 0 to 1, in which those near 1 can be equal. Raises BadInput for a
        document that is too long, GenerationError where the template fails.
        """
        base, encoded = self._ids(query, ""), [self._ids(query, document) for document in documents]
        texts = [
            Text(ids, range(len(ids) - 1, len(ids)), num_shared=num_common(base, ids)) for ids in encoded
        ]
        logits = self.labels.new_empty(len(texts), len(self.labels))  # (N, L)
        for numbers, states in TextRun(self.llama, self.cache, texts, step_tokens, name="documents"):
            logits[numbers] = self.llama.scaled(states.float() @ self.labels.T)
        return logits[:, 0] if len(self.labels) == 1 else logits[:, 0] - logits[:, 1]

    def close(self) -> None:
        """End the helper process."""
        self.templates.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ids(self, query: str, document: str) -> list[int]:
        """The ids of the template around the two, none of whose texts becomes a control token."""
        instruction = (
            [{"role": "system", "content": self.purpose.instruction}] if self.purpose.instruction else []
        )
        asked = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return self.templates.encode(Chat([*instruction, *asked]))


def _label_ids(purpose: Ranks, tokenizer: Tokenizer, source: str) -> list[int]:
    """The ids of the labels. Raises ModelFileError for one that the vocabulary does not have as a token."""
    ids = []
    for label in purpose.labels:
        found = tokenizer.encode(label, add_bos=False) if isinstance(label, str) else [label]
        if len(found) != 1 or not 0 <= found[0] < tokenizer.vocab_size:
            raise ModelFileError(f"{source}: {label!r} is no token of its vocabulary. Take another reranker.")
        ids += found
    return ids


def _label_weight(file: ModelFile, ids: Sequence[int]) -> Weight:
    """The rows of the head for these tokens; for none: the rows that the file has for its labels."""
    if not ids:
        return file.weight(LABELS_NAME)
    head = file.weight("output.weight")
    rows = torch.cat([head.rows[token_id : token_id + 1] for token_id in ids])
    return Weight(head.type, (len(ids), head.shape[-1]), rows)
