"""The tokens that no text becomes, by the names that a chat template calls them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gguf import TokenType

from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.shape.families import FAMILIES
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import JoinedText, TokenizerJson
from llama_herd.model.text.vocabulary import EOS_KEYS, MODEL_KEY, TOKENS_KEY, read_id, read_types

#: What a GGUF file calls them; the third word is its own.
_KEYS = {
    "eos_token": EOS_KEYS[0],
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "cls_token": "tokenizer.ggml.cls_token_id",
    "mask_token": "tokenizer.ggml.mask_token_id",
}


@dataclass(frozen=True)
class ControlTokens:
    """Every control token with its id, and the tokens that a template knows as `bos_token` and the like."""

    ids: Mapping[str, int]
    roles: Mapping[str, str]
    #: Those behind which white space is left out.
    stripping_ids: frozenset[int] = frozenset()
    #: Encodes them with the texts between them, where texts alone do not come to the same.
    joined: JoinedText | None = None

    @classmethod
    def from_metadata(cls, metadata: Metadata, tokenizer: Tokenizer) -> Self:
        """Read the metadata of the GGUF file that `tokenizer` comes from."""
        tokens = metadata.strings(TOKENS_KEY)
        named = {role: read_id(metadata, key, len(tokens)) for role, key in _KEYS.items()}
        if named["eos_token"] is None and len(tokenizer.eos_ids) == 1:  # an only end is the one
            (named["eos_token"],) = tokenizer.eos_ids
        named["bos_token"] = tokenizer.bos_id
        roles = {role: tokens[token_id] for role, token_id in named.items() if token_id is not None}
        ends = tokenizer.eos_ids | {tokenizer.bos_id}
        types = enumerate(read_types(metadata, tokens))
        unused = {i for i, kind in types if kind == TokenType.UNUSED} - ends  # often hundreds
        silent_ids = [
            token_id
            for token_id, piece in enumerate(tokenizer.pieces)
            if not piece and token_id not in unused
        ]
        ids = {token: token_id for token_id in silent_ids if (token := tokens[token_id])}
        architecture, is_spm = str(metadata.get("general.architecture")), metadata.get(MODEL_KEY) == "llama"
        families = [family for family in FAMILIES if is_spm and family.architecture == architecture]
        stripping = frozenset(ids[token] for one in families for token in one.stripping & ids.keys())
        return cls(ids, roles, stripping)

    @classmethod
    def from_json(cls, file: TokenizerJson) -> Self:
        """Read a tokenizer.json with the files beside it."""
        return cls(file.control_ids, file.roles, joined=file.joined_text)
