"""The tokens that no text becomes, by the names that a chat template calls them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from llama_herd.model.json_file import read_json
from llama_herd.model.metadata import Metadata
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_engine import MAX_FILE_BYTES, load_engine
from llama_herd.model.text.tokenizer_json import MAX_CONFIG_BYTES
from llama_herd.model.text.vocabulary import EOS_KEYS, TOKENS_KEY


@dataclass(frozen=True)
class ControlTokens:
    """Every control token with its id, and which of them a template knows as `bos_token` and `eos_token`."""

    ids: Mapping[str, int]
    bos: str | None
    eos: str | None

    @classmethod
    def from_metadata(cls, metadata: Metadata, tokenizer: Tokenizer) -> Self:
        """Read the metadata of the GGUF file that `tokenizer` comes from."""
        tokens, key = metadata.strings(TOKENS_KEY), EOS_KEYS[0]
        eos = tokens[metadata.integer(key, 0, len(tokens) - 1)] if key in metadata else None
        return cls._of(tokenizer, tokens.__getitem__, eos)

    @classmethod
    def from_json(cls, path: Path, tokenizer: Tokenizer) -> Self:
        """Read the tokenizer.json that `tokenizer` comes from, and tokenizer_config.json beside it."""
        config_path = path.with_name("tokenizer_config.json")
        eos = read_json(config_path, MAX_CONFIG_BYTES).get("eos_token") if config_path.is_file() else None
        if isinstance(eos, dict):
            eos = eos.get("content")
        token_of: Callable[[int], str | None] = load_engine(read_json(path, MAX_FILE_BYTES)).id_to_token
        return cls._of(tokenizer, token_of, eos if isinstance(eos, str) else None)

    @classmethod
    def _of(cls, tokenizer: Tokenizer, token_of: Callable[[int], str | None], eos: str | None) -> Self:
        """Control tokens are those that add nothing to a text; without `eos` an only end is the one."""
        silent_ids = [token_id for token_id, piece in enumerate(tokenizer.pieces) if not piece]
        ids = {token: token_id for token_id in silent_ids if (token := token_of(token_id))}
        if eos is None and len(tokenizer.eos_ids) == 1:
            eos = token_of(*tokenizer.eos_ids)
        return cls(ids, None if tokenizer.bos_id is None else token_of(tokenizer.bos_id), eos)
