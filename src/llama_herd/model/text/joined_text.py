"""Control tokens and the texts between them, encoded at once."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Self

from tokenizers import AddedToken

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.tokenizer_engine import load_engine, no_panic


class JoinedText:
    """Encodes what stands beside control tokens as their tokenizer.json says.

    Some files have the white space beside a control token left out (Phi-3), or a space put before the very
    first text only (Mistral). Here each control token has a name that nobody can guess, so no text holds it.
    """

    def __init__(self, file: Metadata, ids: Mapping[str, int]) -> None:
        """`ids` are the control tokens of a tokenizer.json. Raises ModelFileError."""
        secret = secrets.token_hex(16)
        names = {token: f"<{secret}:{token_id}>" for token, token_id in ids.items()}
        self._names = {token_id: names[token] for token, token_id in ids.items()}
        self._engine = load_engine(_renamed(file, names))
        listed = {entry.get("content") for entry in _added_tokens(file)}
        self._engine.add_special_tokens(
            [AddedToken(name, normalized=False) for token, name in names.items() if token not in listed]
        )

    @classmethod
    def where_needed(cls, file: Metadata, ids: Mapping[str, int]) -> Self | None:
        """None for a file to which texts beside control tokens are texts like any other."""
        flags = ("lstrip", "rstrip", "single_word", "normalized")
        added = [entry for entry in _added_tokens(file) if entry.get("content") in ids]
        has_flag = any(entry.get(flag) for entry in added for flag in flags)
        return cls(file, ids) if has_flag or _begins_once(file.get("pre_tokenizer")) else None

    def encode(self, parts: Sequence[int | str]) -> list[int]:
        """The ids of texts and control tokens in a row. Raises GenerationError "tokenizer_error"."""
        text = "".join(self._names[part] if isinstance(part, int) else part for part in parts)
        with no_panic(_failure):
            ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids


def _failure() -> GenerationError:
    return GenerationError(ErrorCode.TOKENIZER_ERROR, "messages: the model's tokenizer fails on this text")


def _added_tokens(file: Metadata) -> list[dict[str, object]]:
    entries = file.get("added_tokens")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _begins_once(step: object) -> bool:
    """Whether only the first text of several gets a space before it."""
    if not isinstance(step, dict):
        return False
    inner = step.get("pretokenizers")
    is_first = step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"
    return is_first or (isinstance(inner, list) and any(map(_begins_once, inner)))


def _is_of(merge: object, names: Mapping[str, str]) -> bool:
    """Whether a merge needs or makes one of these tokens."""
    parts = merge.split(" ") if isinstance(merge, str) else merge if isinstance(merge, list) else []
    return any(isinstance(part, str) and part in names for part in (*parts, "".join(map(str, parts))))


def _renamed(file: Metadata, names: Mapping[str, str]) -> Metadata:
    """The file with other names for its control tokens, each of the same id as before."""
    model = dict(file.nested("model"))
    vocabulary = file.nested("model").nested("vocab")
    model["vocab"] = {names.get(token, token): token_id for token, token_id in vocabulary.items()}
    merges = model.get("merges")
    if isinstance(merges, list) and not names.keys().isdisjoint(vocabulary.keys()):
        model["merges"] = [merge for merge in merges if not _is_of(merge, names)]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(str(model["unk_token"]), model["unk_token"])
    added = [
        {**entry, "content": names[content], "special": True}
        if isinstance(content := entry.get("content"), str) and content in names
        else entry
        for entry in _added_tokens(file)
    ]
    return Metadata({**file, "model": model, "added_tokens": added}, file.source)
