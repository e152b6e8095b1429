"""Embedder: texts to vectors, by a model whose files say how.

Shapes: N texts, C hidden size, W width of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from llama_herd.errors import BadInput, ModelFileError
from llama_herd.model.cache import Cache
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.llama2 import Llama
from llama_herd.model.prefix_cache import num_common
from llama_herd.model.shape.purpose import Embeds
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.texts import STEP_TOKENS, Means, Text, TextRun
from llama_herd.model.vector_head import VectorHead


@dataclass(frozen=True, eq=False)
class Embedder:
    """A model that embeds, with its cache.

        with open_model("Qwen3-Embedding-0.6B") as file:
            llama = Llama.load(file)
            embedder = Embedder.load(file, llama, Cache(llama.config, num_pages=64))
        embedder.vectors(["Llamas spit.", "Alpacas hum."])  # (2, 1024)

    A vector is the same, but for rounding, whoever is embedded beside it and however a text is cut.
    """

    llama: Llama
    cache: Cache
    tokenizer: Tokenizer
    purpose: Embeds
    head: VectorHead

    @classmethod
    def load(cls, file: ModelFile, llama: Llama, cache: Cache) -> Self:
        """Take a loaded model. Raises ModelFileError, with the fix, when it is not one that embeds."""
        purpose = file.purpose
        if not isinstance(purpose, Embeds):
            problem = f"{purpose.sentence}, its files name no pooling"
            raise ModelFileError(f"{file.metadata.source}: {problem}. Take an embedder, or set HERD_POOLING.")
        head = VectorHead.load(purpose, cache.device)
        return cls(llama, cache, file.read_tokenizer(), purpose, head)

    @property
    def width(self) -> int:
        """Numbers of a whole vector."""
        return self.purpose.width(self.llama.config.hidden_size)

    def vectors(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        step_tokens: int = STEP_TOKENS,
    ) -> Tensor:
        """The vectors of texts (N, W), float32. Ids are taken as they are, with nothing around them.

        `prompt` is the name of one of the model's prompts; None: its default, if it has one. With
        `dimensions` a vector is cut to its first numbers, and then normalised. Raises BadInput for an
        unknown prompt, a text that is too long or has no tokens, an id that is none of the vocabulary, and
        dimensions that the model does not have.
        """
        if dimensions is not None and not 1 <= dimensions <= self.width:
            raise BadInput(f"dimensions is {dimensions}, allowed are 1 to {self.width}")
        means = self._pooled(self._encoded(texts, prompt), step_tokens)
        return self.head.cut(self.head(means), dimensions)

    def _pooled(self, texts: Sequence[Text], step_tokens: int) -> Tensor:
        """The mean (N, C) of the wanted states of each text."""
        means = Means(texts, self.llama.config.hidden_size, self.cache.device)
        for found in TextRun(self.llama, self.cache, texts, step_tokens, self.purpose.max_tokens):
            means.add(found)
        return means.vectors

    def _encoded(self, texts: Sequence[str | Sequence[int]], prompt: str | None) -> list[Text]:
        """The ids of texts behind the prompt, with what the model's files put around them."""
        before, pooling = self._prompt(prompt), self.purpose.pooling
        prompt_ids = (
            [*self.tokenizer.first_ids, *self.tokenizer.encode(before, add_bos=False)] if before else []
        )
        num_skipped = 0 if self.purpose.pools_prompt else len(prompt_ids)
        encoded = []
        for number, text in enumerate(texts):
            if isinstance(text, str):
                ids = self.tokenizer.encode(before + text)
                wanted = pooling.wanted(len(ids), num_skipped)
                encoded.append(Text(ids, wanted, num_common(prompt_ids, ids)))
            else:
                encoded.append(Text(self._checked(number, text), pooling.wanted(len(text))))
        return encoded

    def _checked(self, number: int, ids: Sequence[int]) -> Sequence[int]:
        vocab_size = self.llama.config.vocab_size
        wrong = [token_id for token_id in ids if not 0 <= token_id < vocab_size]
        if wrong:
            raise BadInput(f"texts[{number}] has the id {wrong[0]}, allowed are 0 to {vocab_size - 1}")
        return ids

    def _prompt(self, name: str | None) -> str:
        name = self.purpose.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.purpose.prompts:
            known = ", ".join(map(repr, self.purpose.prompts)) or "none"
            raise BadInput(f"prompt is {name!r}, this model has {known}")
        return self.purpose.prompts[name]
