"""TokenFacts: a tokenizer as a model's files describe it, whether or not it can be built."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.json_file import read_json
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.special_tokens import MAX_CONFIG_BYTES, listed_tokens
from llama_herd.model.text.template_files import folder_templates, metadata_templates
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_engine import MAX_FILE_BYTES
from llama_herd.model.text.vocabulary import BOS_KEY, EOS_KEYS, TOKENS_KEY

PRINTABLE = "".join(map(chr, range(32, 127)))


@dataclass(frozen=True)
class TokenFacts:
    """Facts of a tokenizer, or from headers alone: then tokens that their names make an end are not seen."""

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    adds_bos: bool
    chat_templates: tuple[str, ...]  # their names
    #: Why one cannot be used, so that jobs with messages are refused. Empty: all can, or none was tried.
    chat_complaint: str = ""
    first_ids: tuple[int, ...] = ()  # before a text
    last_ids: tuple[int, ...] = ()  # and behind it
    complaints: tuple[str, ...] = ()  # of what was left out of the files
    #: Printable ASCII that no token stands for by itself: outputs cannot be held to a form that needs it.
    lacks: str = ""

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, chat_complaint: str) -> Self:
        """The facts of a tokenizer that is built."""
        pieces = frozenset(tokenizer.pieces)
        return cls(
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos_id,
            eos_ids=tuple(sorted(tokenizer.eos_ids)),
            adds_bos=tokenizer.adds_bos,
            chat_templates=tuple(sorted(tokenizer.chat_templates)),
            chat_complaint=chat_complaint,
            first_ids=tokenizer.first_ids,
            last_ids=tokenizer.last_ids,
            complaints=tokenizer.complaints,
            lacks="".join(char for char in PRINTABLE if char.encode() not in pieces),
        )

    @classmethod
    def from_header(cls, header: Mapping[str, object]) -> Self | None:
        """The facts in the header of a GGUF file; None if it lists no tokens."""
        tokens = header.get(TOKENS_KEY)
        if not isinstance(tokens, Sequence):
            return None
        bos_id = _first(_ids([header.get(BOS_KEY)]))
        adds_bos = header.get("tokenizer.ggml.add_bos_token", bos_id is not None) is True
        names: tuple[str, ...] = ()
        with suppress(ModelFileError):
            names = tuple(sorted(metadata_templates(Metadata(header))[0]))
        return cls(len(tokens), bos_id, _ids(map(header.get, EOS_KEYS)), adds_bos, names)

    @classmethod
    def from_folder(cls, folder: Path) -> Self | None:
        """The facts in a Hugging Face folder; None without a tokenizer.json that lists tokens."""
        file = _read(folder / "tokenizer.json", MAX_FILE_BYTES)
        ids = _vocabulary(file)
        if not ids:
            return None
        config = _read(folder / "tokenizer_config.json", MAX_CONFIG_BYTES)
        others = _read(folder / "generation_config.json", MAX_CONFIG_BYTES)
        others = others or _read(folder / "config.json", MAX_CONFIG_BYTES)
        found = {}
        for role in ("bos_token", "eos_token"):
            named, stated = config.get(role), others.get(f"{role}_id")
            name = named.get("content") if isinstance(named, dict) else named
            own = ids.get(name) if isinstance(name, str) else None
            found[role] = _ids([own, *(stated if isinstance(stated, list) else [stated])])
        names: tuple[str, ...] = ()
        with suppress(ModelFileError):
            names = tuple(sorted(folder_templates(folder, config)[0]))
        adds_bos = config.get("add_bos_token") is True
        return cls(len(ids), _first(found["bos_token"]), found["eos_token"], adds_bos, names)


def _vocabulary(file: Metadata) -> dict[str, int]:
    """The ids of a tokenizer.json's tokens."""
    model = file.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, int] = {}
    if isinstance(vocab, dict):
        ids = {token: token_id for token, token_id in vocab.items() if type(token_id) is int}
    elif isinstance(vocab, list):  # of a Unigram model: pairs of a token and its score
        ids = {str(pair[0]): i for i, pair in enumerate(vocab) if isinstance(pair, list) and pair}
    return ids | {entry["content"]: entry["id"] for entry in listed_tokens(file)}


def _read(path: Path, max_bytes: int) -> Metadata:
    if path.is_file():
        with suppress(ModelFileError):
            return read_json(path, max_bytes).without_nulls()
    return Metadata({}, str(path))


def _ids(values: Iterable[object]) -> tuple[int, ...]:
    """The whole numbers among the values, each once."""
    return tuple(dict.fromkeys(value for value in values if type(value) is int))


def _first(ids: Sequence[int]) -> int | None:
    return ids[0] if ids else None
