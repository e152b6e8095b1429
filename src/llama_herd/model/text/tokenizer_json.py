"""A Hugging Face tokenizer.json with the files beside it, which name its special tokens."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Self

from tokenizers import AddedToken

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.reading.json_file import read_json
from llama_herd.model.reading.metadata import Metadata, quoted
from llama_herd.model.text.byte_level import byte_level_piece
from llama_herd.model.text.special_tokens import (
    SpecialTokens,
    entry_of,
    listed_tokens,
    made_special,
    read_beside,
)
from llama_herd.model.text.spm import spm_piece
from llama_herd.model.text.template_files import folder_templates
from llama_herd.model.text.tokenizer_engine import (
    MAX_FILE_BYTES,
    decoder_kinds,
    load_engine,
    no_panic,
    surroundings,
)
from llama_herd.model.text.vocabulary import MAX_TOKENS, end_names

#: Marks a generation_config.json that somebody's program wrote from a config.json.
COPY_KEY = "_from_model_config"


class TokenizerJson:
    """Encodes as the file says, except that names of special tokens in a text are text like any other.

    Which tokens are special, and what they are for, the files in the same folder say, as in transformers.
    Ends come from there, and from generation_config.json or else config.json. What no text needs is left
    out where a file says what cannot be, and `complaints` name it.
    """

    def __init__(self, path: Path, num_rows: int | None = None) -> None:
        """Read a file for a model with so many rows: those beyond its tokens add nothing to a text."""
        if not path.is_file():
            raise ModelFileError(f"{path}: no such file. Give the path of a tokenizer.json.")
        self._folder, self._num_rows = path.parent, MAX_TOKENS if num_rows is None else num_rows
        file = read_json(path, MAX_FILE_BYTES).without_nulls()
        special = SpecialTokens(file, self._folder)
        self.complaints = [*special.complaints]
        #: EOS with the complaint, if `add_eos_token` asks for one and the post_processor puts none.
        self.asked_end: tuple[int, str] | None = None
        file = self._load(file, special)
        self.roles = {role: token for role, token in special.roles.items() if self._id(token) is not None}
        self.eos_ids = frozenset(self._read_ends())
        self.bos_id = self._read_bos()
        self.first_ids, self.last_ids = self._read_surroundings(file)
        self.pieces = self._read_pieces(file, num_rows or 0)
        silent_ids = [token_id for token_id, piece in enumerate(self.pieces) if not piece]
        #: Every control token with its id: those that add nothing to a text.
        self.control_ids = {token: token_id for token_id in silent_ids if (token := self.token(token_id))}
        added = [entry_of(token, token_id) for token_id, token in self._added.items()]
        self.joined_text = JoinedText.where_needed(
            Metadata({**file, "added_tokens": added}, file.source), self.control_ids
        )

    @classmethod
    def open(cls, path: str | PathLike[str], num_rows: int | None = None) -> Self:
        """Open a tokenizer.json of a model with so many rows; None: any. Raises ModelFileError."""
        with no_panic(ModelFileError, f"{path}: not a tokenizer. Fetch it again."):
            return cls(Path(path), num_rows)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them a special token's."""
        ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids

    def token(self, token_id: int) -> str | None:
        """The token as the files write it, if the id is one; the engine writes some as it looks for them."""
        if token_id in self._added:
            return str(self._added[token_id].content)
        token: str | None = self._engine.id_to_token(token_id)
        return token

    def read_chat_templates(self) -> tuple[dict[str, str], list[str]]:
        """The chat templates of the Jinja files, else those of tokenizer_config.json; and complaints."""
        return folder_templates(self._folder, self._beside("tokenizer_config.json"))

    def _load(self, file: Metadata, special: SpecialTokens) -> Metadata:
        """Make the engine, without the added tokens for which the model has no row; return what it is of."""
        self._make_engine(file, special.added)
        beyond = {token.content: i for i, token in self._added.items() if i >= self._num_rows}
        if not beyond or self._engine.get_vocab_size(with_added_tokens=False) > self._num_rows:
            return file
        named = ", ".join(f"{quoted(token)} ({token_id})" for token, token_id in [*beyond.items()][:8])
        self.complaints.append(
            f"{file.source}: added tokens have no row of the model's {self._num_rows}, so they are left out: "
            f"{named}"
        )
        kept = [entry for entry in listed_tokens(file) if entry["content"] not in beyond]
        file = Metadata({**file, "added_tokens": kept}, file.source)
        self._make_engine(file, [token for token in special.added if token.content not in beyond])
        return file

    def _make_engine(self, file: Metadata, added: list[AddedToken]) -> None:
        self._engine = load_engine(file)
        self._add(added)

    def _add(self, tokens: list[AddedToken]) -> None:
        self._engine.add_tokens(tokens)
        self._added = dict(sorted(self._engine.get_added_tokens_decoder().items()))

    def _read_ends(self) -> Iterator[int]:
        """Ids of all ends: of the role, of those that are for generations, of added tokens by their names.

        An end that a program may have copied from defaults, and which is a word of this vocabulary, is left
        out where a better one is known.
        """
        added = {token.content: token_id for token_id, token in self._added.items()}
        role = self._id(self.roles.get("eos_token", ""))
        named = ([] if role is None else [role]) + [added[name] for name in end_names(added)]
        stated, is_copied = self._generation()
        for token_id in self._stated_ids(stated, "eos_token_id"):
            if token_id in added.values():
                named.append(token_id)
            elif is_copied and named:
                word = quoted(self.token(token_id))
                self.complaints.append(
                    f"{stated.source}: eos_token_id is {token_id}, which is the word {word}, "
                    "so it ends nothing: other ends are known"
                )
            else:
                yield token_id
        self._keep_from_text(named)
        yield from named

    def _read_bos(self) -> int | None:
        """The id of the role, or else the one that is for generations if it is no word."""
        role = self._id(self.roles.get("bos_token", ""))
        stated = self._stated_ids(self._generation()[0], "bos_token_id") if role is None else []
        return next((token_id for token_id in stated if token_id in self._added), role)

    def _generation(self) -> tuple[Metadata, bool]:
        """What speaks of generations, and whether its ids may be defaults of a program."""
        if (self._folder / "generation_config.json").is_file():
            own = self._beside("generation_config.json")
            return own, own.get(COPY_KEY) is True
        return self._beside("config.json"), True

    def _stated_ids(self, file: Metadata, key: str) -> list[int]:
        """The ids under a key, one or a list; others than ids of this vocabulary are left out."""
        stated = file.get(key, [])
        ids = []
        for value in stated if isinstance(stated, list) else [stated]:
            if type(value) is int and 0 <= value < self._num_rows and self.token(value) is not None:
                ids.append(value)
            else:
                complaint = (
                    f"{file.source}: {key} is {quoted(value)}, no id of this vocabulary, so it is left out"
                )
                self.complaints += [complaint] if complaint not in self.complaints else []
        return ids

    def _read_surroundings(self, file: Metadata) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after a text, by the file's own template: the flags beside it count no more."""
        first, last, why = surroundings(file)
        wrong = [i for i in (*first, *last) if i >= self._num_rows or self.token(i) is None]
        if wrong or why:
            why = why or f"names the id {wrong[0]}, which is none of this vocabulary"
            self.complaints.append(f"{file.source}: post_processor {why}, so nothing is put around a text")
            first, last = (), ()
        config = self._beside("tokenizer_config.json")
        for role, ids, at in (("bos", first, "before"), ("eos", last, "behind")):
            stated, token_id = config.get(f"add_{role}_token"), self._id(self.roles.get(f"{role}_token", ""))
            if isinstance(stated, bool) and token_id is not None and stated != (token_id in ids):
                said = f"add_{role}_token is {str(stated).lower()}"
                does = "puts none" if stated else "puts one"
                complaint = f"{config.source}: {said}, but tokenizer.json, which counts, {does} {at} a text"
                self.complaints.append(complaint)
                if role == "eos" and stated:
                    self.asked_end = token_id, complaint
        return first, last

    def _beside(self, name: str) -> Metadata:
        return read_beside(self._folder, name).without_nulls()

    def _id(self, token: str) -> int | None:
        token_id: int | None = self._engine.token_to_id(token)
        return token_id

    def _keep_from_text(self, token_ids: list[int]) -> None:
        """Make these added tokens special, should none have done so; those are not looked for in texts."""
        tokens = [self._added[token_id] for token_id in token_ids]
        self._add([made_special(token) for token in tokens if not token.special])
        self._engine.encode_special_tokens = True

    def _read_pieces(self, file: Metadata, least: int) -> tuple[bytes, ...]:
        kinds = decoder_kinds(file)
        if not kinds & {"ByteLevel", "Replace", "Metaspace"}:
            raise file.error("decoder", "is neither ByteLevel nor one that replaces \u2581")
        # Tokens are bytes in disguise (Llama 3), or text with marked spaces (Llama 2).
        piece_of = byte_level_piece if "ByteLevel" in kinds else spm_piece
        pieces = {token_id: piece_of(token) for token, token_id in self._engine.get_vocab().items()}
        for token_id, token in self._added.items():
            pieces[token_id] = b"" if token.special else token.content.encode()
        if not pieces or max(pieces) >= MAX_TOKENS:
            raise file.error("model.vocab", f"has ids up to {max(pieces, default=0)}, limit {MAX_TOKENS}")
        return tuple(pieces.get(token_id, b"") for token_id in range(max(max(pieces) + 1, least)))


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
        listed = {entry["content"] for entry in listed_tokens(file)}
        self._engine.add_special_tokens(
            [AddedToken(name, normalized=False) for token, name in names.items() if token not in listed]
        )

    @classmethod
    def where_needed(cls, file: Metadata, ids: Mapping[str, int]) -> Self | None:
        """None for a file to which texts beside control tokens are texts like any other."""
        flags = ("lstrip", "rstrip", "single_word", "normalized")
        added = [entry for entry in listed_tokens(file) if entry["content"] in ids]
        has_flag = any(entry.get(flag) for entry in added for flag in flags)
        return cls(file, ids) if has_flag or _begins_once(file.get("pre_tokenizer")) else None

    def encode(self, parts: Sequence[int | str]) -> list[int]:
        """The ids of texts and control tokens in a row. Raises GenerationError "tokenizer_error"."""
        text = "".join(self._names[part] if isinstance(part, int) else part for part in parts)
        problem = "messages: the model's tokenizer fails on this text"
        with no_panic(GenerationError, ErrorCode.TOKENIZER_ERROR, problem):
            ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        return ids


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
        {**entry, "content": names[entry["content"]], "special": True} if entry["content"] in names else entry
        for entry in listed_tokens(file)
    ]
    return Metadata({**file, "model": model, "added_tokens": added}, file.source)
