"""The SPM vocabulary: trained on the documents, and how a document becomes the ids a model learns."""

import io
from collections.abc import Iterable
from typing import NamedTuple

import sentencepiece

from training.corpus import Document
from training.grammar import NEXT_TURN

SIZE = 2048


class Example(NamedTuple):
    """The ids of a document; the model is to learn those from `learn_from` on."""

    ids: list[int]
    learn_from: int


class Vocabulary:
    """A SentencePiece model, and Llama-2's way to put a chat into ids."""

    def __init__(self, serialized: bytes) -> None:
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=serialized)

    @classmethod
    def train(cls, texts: Iterable[str]) -> "Vocabulary":
        """BPE with byte fallback, as Llama-2's: no normalisation, digits one by one."""
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.splitlines()),
            model_writer=model,
            model_type="bpe",
            vocab_size=SIZE,
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            num_threads=1,
            minloglevel=2,
        )
        return cls(model.getvalue())

    def encode(self, document: Document) -> Example:
        """The ids of a document. Of a chat the last answer alone is learned, of a plain text everything."""
        *earlier, prompt = document.prompt.split(NEXT_TURN)
        history = [token for turn in earlier for token in self._closed(turn + " ")]
        is_chat = prompt.startswith("[INST]")
        num_prompt_tokens = len(self.pieces.encode(prompt)) + 1
        return Example(
            history + self._closed(prompt + document.completion),
            len(history) + num_prompt_tokens if is_chat else 1,
        )

    def _closed(self, text: str) -> list[int]:
        return [self.pieces.bos_id(), *self.pieces.encode(text), self.pieces.eos_id()]
