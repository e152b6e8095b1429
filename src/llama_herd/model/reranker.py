"""Reranker: how well documents answer a query, by a model whose files say how.

Shapes: N documents.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from llama_herd.errors import ModelFileError
from llama_herd.model.cache import Cache
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.llama2 import Llama
from llama_herd.model.prefix_cache import num_common
from llama_herd.model.rank_head import RankHead
from llama_herd.model.shape.purpose import Ranks
from llama_herd.model.text.chat import Chat, ChatTemplates
from llama_herd.model.text.template_files import DEFAULT
from llama_herd.model.texts import STEP_TOKENS, Text, TextRun


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
    head: RankHead

    @classmethod
    def load(cls, file: ModelFile, llama: Llama, cache: Cache) -> Self:
        """Take a loaded model. Raises ModelFileError, with the fix, when it is not one that ranks."""
        purpose, source = file.purpose, file.metadata.source
        if not isinstance(purpose, Ranks):
            problem = f"{purpose.sentence}, its files say nothing of ranks"
            raise ModelFileError(f"{source}: {problem}. Take a reranker, or set HERD_POOLING=rank.")
        tokenizer = file.read_tokenizer()
        template = purpose.template or tokenizer.chat_templates.get(DEFAULT, "")
        if not template:
            raise ModelFileError(f"{source}: has no chat template, which is needed to rank. Fetch it again.")
        templates = ChatTemplates({DEFAULT: template}, tokenizer, file.read_control_tokens(tokenizer))
        head = RankHead.load(file, purpose, llama, tokenizer, cache.device)
        return cls(llama, cache, templates, purpose, head)

    def logits(self, query: str, documents: Sequence[str], *, step_tokens: int = STEP_TOKENS) -> Tensor:
        """How well each document answers the query (N,), float32: sort by these.

        Their `sigmoid()` is a score from 0 to 1, in which those near 1 can be equal. Raises BadInput for a
        document that is too long, GenerationError where the template fails.
        """
        base, encoded = self._ids(query, ""), [self._ids(query, document) for document in documents]
        texts = [
            Text(ids, range(len(ids) - 1, len(ids)), num_shared=num_common(base, ids)) for ids in encoded
        ]
        logits = self.head.labels.new_empty(len(texts), 1)
        for numbers, states in TextRun(self.llama, self.cache, texts, step_tokens, name="documents"):
            logits[numbers] = self.head(states.float())
        return logits[:, 0]

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
