"""A model as a person names it: a GGUF file, or a Hugging Face folder. One opener for both."""

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Protocol

from llama_herd.errors import ModelFileError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.control_tokens import ControlTokens
from llama_herd.model.gguf_model import GGUFModel
from llama_herd.model.metadata import Metadata
from llama_herd.model.padded_codec import PaddedCodec
from llama_herd.model.safetensors_model import CONFIG_NAME, SafetensorsModel
from llama_herd.model.tokenizer import Tokenizer
from llama_herd.model.weight import Weight

TOKENIZER_NAME = "tokenizer.json"

_ACCEPTED = (
    "A model is a GGUF file, or a Hugging Face folder with config.json, tokenizer.json and model.safetensors"
)


class ModelFile(Protocol):
    """What a Llama is loaded from. Names of weights are GGUF's."""

    config: LlamaConfig

    @property
    def metadata(self) -> Metadata:
        """What the model says about itself."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, as they are stored."""

    def __contains__(self, name: str) -> bool:
        """Whether an optional weight is there itself."""

    def weight(self, name: str) -> Weight:
        """A weight, rows of attn_q and attn_k half-split; a missing `output.weight` is the embedding."""

    def release(self, name: str) -> None:
        """Let a weight's pages go from memory once it has been laid out elsewhere."""

    def close(self) -> None:
        """Give up the files; weights that were asked for stay good."""


def open_model(path: str | PathLike[str]) -> GGUFModel | SafetensorsModel:
    """Open a GGUF file or a folder. Raises ModelFileError when it is missing, damaged or no known Llama."""
    path = Path(path)
    if (path / CONFIG_NAME).is_file():
        return SafetensorsModel.open(path)
    if path.is_dir():
        found = "".join(f" Here lies {file.name}." for file in sorted(path.glob("*.gguf"))[:1])
        raise ModelFileError(f"{path}: a folder without {CONFIG_NAME}. {_ACCEPTED}.{found}")
    if not path.exists():
        raise ModelFileError(f"{path}: no such file or folder. {_ACCEPTED}.")
    if path.suffix in (".safetensors", ".json"):
        raise ModelFileError(f"{path}: a part of a model. {_ACCEPTED}: give {path.parent}.")
    return GGUFModel.open(path)


def read_tokenizer(model: GGUFModel | SafetensorsModel) -> Tokenizer:
    """A model's tokenizer, with a piece for each of its rows. Raises ModelFileError."""
    if isinstance(model, GGUFModel):
        return Tokenizer.from_metadata(model.metadata)
    path = model.folder / TOKENIZER_NAME
    if not path.is_file():
        raise ModelFileError(
            f"{path}: missing. Fetch it, or load the tokenizer with transformers and call `save_pretrained`."
        )
    tokenizer, num_rows = Tokenizer.from_json(path), model.config.vocab_size
    if tokenizer.vocab_size > num_rows:
        raise model.metadata.error(
            "vocab_size", f"is {num_rows}, but {TOKENIZER_NAME} has {tokenizer.vocab_size} tokens"
        )
    return replace(tokenizer, codec=PaddedCodec(tokenizer.codec, num_rows))


def read_control_tokens(model: GGUFModel | SafetensorsModel, tokenizer: Tokenizer) -> ControlTokens:
    """The control tokens of a model whose tokenizer has been read."""
    if isinstance(model, GGUFModel):
        return ControlTokens.from_metadata(model.metadata, tokenizer)
    return ControlTokens.from_json(model.folder / TOKENIZER_NAME, tokenizer)
