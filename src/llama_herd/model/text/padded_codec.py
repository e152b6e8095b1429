"""A vocabulary for a model that has more rows than tokens, as models with rounded-up embeddings do."""

from llama_herd.model.text.tokenizer import Codec


class PaddedCodec:
    """Encodes as `codec` does; the ids beyond its tokens add nothing to a text."""

    def __init__(self, codec: Codec, num_tokens: int) -> None:
        self.pieces = codec.pieces + (b"",) * (num_tokens - len(codec.pieces))
        self._codec = codec

    def encode(self, text: str) -> list[int]:
        return self._codec.encode(text)
