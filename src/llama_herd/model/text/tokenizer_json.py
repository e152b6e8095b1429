"""A Hugging Face tokenizer.json with the files beside it, which name its special tokens."""

from os import PathLike
from pathlib import Path
from typing import Self, TypeGuard

from tokenizers import AddedToken

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.json_file import read_json
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.byte_level import byte_level_piece
from llama_herd.model.text.end_tokens import end_names
from llama_herd.model.text.joined_text import JoinedText
from llama_herd.model.text.spm import spm_piece
from llama_herd.model.text.template_files import folder_templates
from llama_herd.model.text.tokenizer_engine import MAX_FILE_BYTES, load_engine, no_panic
from llama_herd.model.text.tokenizer_steps import decoder_kinds, leading_token
from llama_herd.model.text.vocabulary import MAX_TOKENS

#: Most bytes of each file beside a tokenizer.json.
MAX_CONFIG_BYTES = 16 << 20


class TokenizerJson:
    """Encodes as the file says, except that names of special tokens in a text are text like any other.

    BOS, EOS and the chat templates come from tokenizer_config.json, generation_config.json (else config.json)
    and the Jinja files, as far as they lie in the same folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelFileError(f"{path}: no such file. Give the path of a tokenizer.json.")
        self._path = path
        file = _read_object(path, MAX_FILE_BYTES)
        self._config = _read_object(path.with_name("tokenizer_config.json"))
        self._generation = _read_object(path.with_name("generation_config.json"))
        if not self._generation:
            self._generation = _read_object(path.with_name("config.json"))
        self._engine = load_engine(file)
        bos_ids, eos_ids = self._role_ids("bos_token"), [*self._role_ids("eos_token"), *self._named_ends()]
        self.bos_id = bos_ids[0] if bos_ids else None
        self.eos_ids = frozenset(eos_ids)
        self.adds_bos = self._config.flag("add_bos_token", self._template_adds_bos(file))
        if self.adds_bos and self.bos_id is None:
            raise self._config.error("bos_token", "is missing, and add_bos_token is true")
        adds_eos = self._config.flag("add_eos_token", False)
        if adds_eos and not eos_ids:
            raise self._config.error("eos_token", "is missing, and add_eos_token is true")
        self.last_id = eos_ids[0] if adds_eos else None
        self._keep_from_text([*bos_ids, *eos_ids])
        self.pieces = self._read_pieces(file)
        silent_ids = [token_id for token_id, piece in enumerate(self.pieces) if not piece]
        #: Every control token with its id: those that add nothing to a text.
        self.control_ids = {token: token_id for token_id in silent_ids if (token := self.token(token_id))}
        self.joined_text = JoinedText.where_needed(file, self.control_ids)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open a tokenizer.json with the files beside it. Raises ModelFileError."""
        with no_panic(ModelFileError(f"{path}: not a tokenizer. Fetch it again.")):
            return cls(Path(path))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them a special token's."""
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it, if the id is one."""
        token: str | None = self._engine.id_to_token(token_id)
        return token

    def named(self, role: str) -> str | None:
        """The token that tokenizer_config.json gives a role such as "eos_token"; it may have properties."""
        token = self._config.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        return text if isinstance(text, str) else None

    @property
    def chat_templates(self) -> dict[str, str]:
        """The chat templates of the Jinja files, else those of tokenizer_config.json."""
        return folder_templates(self._path.parent, self._config)

    def _template_adds_bos(self, file: Metadata) -> bool:
        name = leading_token(file)
        return name is not None and self.bos_id is not None and self._engine.token_to_id(name) == self.bos_id

    def _role_ids(self, role: str) -> list[int]:
        """Ids of "bos_token" or "eos_token": first the configured token's, then those of the generation."""
        token = self.named(role)
        generation_ids = self._generation.get(f"{role}_id", [])
        named = generation_ids if isinstance(generation_ids, list) else [generation_ids]
        if token is not None:
            named = [self._engine.token_to_id(token), *named]
        ids = [token_id for token_id in named if self._is_id(token_id)]
        if len(ids) < len(named):
            raise self._config.error(role, "or its id is not in the vocabulary")
        return ids

    def _named_ends(self) -> list[int]:
        """Added tokens that are ends by their names."""
        tokens = self._engine.get_added_tokens_decoder().items()
        added = {token.content: token_id for token_id, token in tokens}
        return [added[name] for name in end_names(added)]

    def _is_id(self, value: object) -> TypeGuard[int]:
        if not isinstance(value, int) or not 0 <= value < MAX_TOKENS:
            return False
        return self.token(value) is not None

    def _keep_from_text(self, token_ids: list[int]) -> None:
        """Make these tokens special, should the file not do so; special ones are not looked for in texts."""
        tokens = [self.token(token_id) for token_id in token_ids]
        self._engine.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
        self._engine.encode_special_tokens = True

    def _read_pieces(self, file: Metadata) -> tuple[bytes, ...]:
        piece_of = byte_level_piece if _is_byte_level(file) else spm_piece
        pieces = {token_id: piece_of(token) for token, token_id in self._engine.get_vocab().items()}
        for token_id, token in self._engine.get_added_tokens_decoder().items():
            pieces[token_id] = b"" if token.special else token.content.encode()
        if not pieces or max(pieces) >= MAX_TOKENS:
            raise file.error("model.vocab", f"has ids up to {max(pieces, default=0)}, limit {MAX_TOKENS}")
        return tuple(pieces.get(token_id, b"") for token_id in range(max(pieces) + 1))


def _is_byte_level(file: Metadata) -> bool:
    """Whether tokens are bytes in disguise (Llama 3) or text with marked spaces (Llama 2)."""
    kinds = decoder_kinds(file)
    if "ByteLevel" in kinds:
        return True
    if kinds & {"Replace", "Metaspace"}:
        return False
    raise file.error("decoder", "is neither ByteLevel nor one that replaces \u2581")


def _read_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> Metadata:
    """A JSON file's keys, without the null ones; none if there is no such file."""
    return read_json(path, max_bytes).without_nulls() if path.is_file() else Metadata({}, str(path))
