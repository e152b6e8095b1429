"""The special tokens that the files beside a tokenizer.json name, with the precedence of transformers.

tokenizer_config.json says all if it has `added_tokens_decoder`. Else special_tokens_map.json counts for more,
and added_tokens.json and the tokenizer.json itself add to both.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from llama_herd.model.reading.json_file import read_json
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.tokenizer_engine import decoder_kinds

#: Most bytes of each file beside a tokenizer.json.
MAX_CONFIG_BYTES = 16 << 20

#: Roles that a template asks for by these names, as far as the model has a token for them.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

#: Tokens beyond the roles, under the name of today and the one of before.
EXTRA_KEY, OLD_EXTRA_KEY = "extra_special_tokens", "additional_special_tokens"
DECODER_KEY = "added_tokens_decoder"

#: Roles of transformers' own tokenizers that a file need not state: `tokenizer_class` without its "Fast".
CLASS_ROLES = {
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "GemmaTokenizer": {
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "Qwen2Tokenizer": dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    "GPT2Tokenizer": dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
}

#: Properties of a token that a file may state.
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


class SpecialTokens:
    """Tokens by their roles, and those that come to a tokenizer.json's own."""

    def __init__(self, file: Metadata, folder: Path) -> None:
        """Read what lies beside `file`, a tokenizer.json. Raises ModelFileError where one is no JSON."""
        self.complaints: list[str] = []  # of what is left out
        self._by_role: dict[str, AddedToken] = {}
        self._by_id: dict[int, AddedToken] = {}
        listed = {entry["id"]: _from_entry(entry) for entry in listed_tokens(file)}
        config = _with_defaults(read_beside(folder, "tokenizer_config.json"), file, listed.values())
        self._take_roles(config)
        #: Under the name of today; None: it is not there, so that the one of before counts.
        self._extra = self._read_extra(config, config.get(EXTRA_KEY)) if EXTRA_KEY in config else None
        self._old_extra: list[AddedToken] = []
        if config.get(OLD_EXTRA_KEY) and not config.get(EXTRA_KEY):
            self._extra = self._read_extra(config, config[OLD_EXTRA_KEY])
        else:
            self._old_extra = self._read_extra(config, config.get(OLD_EXTRA_KEY)) or []
        if DECODER_KEY in config:
            self._take_decoder(config)
        else:
            self._take_map(read_beside(folder, "special_tokens_map.json"))
            self._take_added(read_beside(folder, "added_tokens.json"))
            self._by_id |= listed
        self.added = self._in_order(listed.values())

    @property
    def roles(self) -> dict[str, str]:
        """Also roles of the model's own, such as `image_token`."""
        return {role: token.content for role, token in self._by_role.items()}

    def _take_decoder(self, config: Metadata) -> None:
        """The tokens of `added_tokens_decoder`, by their ids."""
        entries = config.get(DECODER_KEY)
        for key, value in entries.items() if isinstance(entries, dict) else ():
            token = self._token(config, f"{DECODER_KEY}: {key}", value)
            if token is not None and key.isdecimal():
                self._by_id[int(key)] = token

    def _take_map(self, file: Metadata) -> None:
        """What special_tokens_map.json says counts for more; its null takes a role away."""
        self._take_roles(file)
        if EXTRA_KEY in file:
            more = self._read_extra(file, file[EXTRA_KEY])
            self._extra = self._extra if more is None else [*(self._extra or ()), *more]
        if OLD_EXTRA_KEY in file:
            self._old_extra = self._read_extra(file, file[OLD_EXTRA_KEY]) or []

    def _take_added(self, file: Metadata) -> None:
        """The tokens of added_tokens.json: a text for each id."""
        special = {*self.roles.values(), *(token.content for token in self._extra or ())}
        for text, token_id in file.items():
            if type(token_id) is int and token_id >= 0:
                is_special = text in special
                self._by_id[token_id] = AddedToken(text, normalized=not is_special, special=is_special)
            else:
                self.complaints.append(f"{file.source}: {text!r:.60} has no id, so it is left out")

    def _in_order(self, listed: Iterable[AddedToken]) -> list[AddedToken]:
        """All tokens as new ones take ids: those with ids, then roles and extra tokens that have none."""
        known = {token.content for token in (*listed, *self._by_id.values())}
        by_id = [token for _, token in sorted(self._by_id.items())]
        names = set(self.roles.values())
        names_of_roles = dict.fromkeys((*ROLES, *self._by_role))  # those of all models first
        roles = [self._by_role[role] for role in names_of_roles if role in self._by_role]
        extra = self._old_extra if self._extra is None else self._extra
        others = (token for token in (*roles, *extra) if token.content not in known)
        return [made_special(token) if token.content in names else token for token in (*by_id, *others)]

    def _take_roles(self, file: Metadata) -> None:
        for key, value in file.items():
            is_own = key.endswith("_token") and isinstance(value, str | dict)
            if key in ROLES or is_own:
                self._take_role(file, key, value)

    def _take_role(self, file: Metadata, key: str, value: Any) -> None:
        self._by_role.pop(key, None)
        token = None if value is None else self._token(file, key, value)
        if token is not None:
            self._by_role[key] = token

    def _read_extra(self, file: Metadata, value: Any) -> list[AddedToken] | None:
        """Extra tokens of a list; those of an object have roles, and then it is as if there were none."""
        if isinstance(value, dict):
            for role, named in value.items():
                self._take_role(file, role, named)
            return None
        items = value if isinstance(value, list) else []
        tokens = [self._token(file, EXTRA_KEY, item) for item in items]
        return [made_special(token) for token in tokens if token is not None]

    def _token(self, file: Metadata, key: str, value: Any) -> AddedToken | None:
        """A token, which is a text or has properties; None, with a complaint, if it is neither."""
        if isinstance(value, str) and value:
            return AddedToken(value, special=True)
        if isinstance(value, dict) and isinstance(value.get("content"), str) and value["content"]:
            return _from_entry(value)
        self.complaints.append(
            f"{file.source}: {key} is of type {type(value).__name__}, a token is needed, so it is left out"
        )
        return None


def read_beside(folder: Path, name: str) -> Metadata:
    """A JSON file's keys; none if there is no such file."""
    path = folder / name
    return read_json(path, MAX_CONFIG_BYTES) if path.is_file() else Metadata({}, str(path))


def entry_of(token: AddedToken, token_id: int) -> dict[str, object]:
    """A token as a tokenizer.json lists it."""
    flags = {name: getattr(token, name) for name in _FLAGS}
    return {"id": token_id, "content": token.content, **flags}


def made_special(token: AddedToken) -> AddedToken:
    """The token, special now, with its other properties."""
    return _from_entry({**entry_of(token, 0), "special": True})


def _with_defaults(config: Metadata, file: Metadata, listed: Iterable[AddedToken]) -> Metadata:
    """A tokenizer_config.json with the roles of its class, where the vocabulary has tokens for them."""
    name, model = str(config.get("tokenizer_class", "")).removesuffix("Fast"), file.get("model")
    if name == "LlamaTokenizer" and "ByteLevel" in decoder_kinds(file):
        return config  # the class of Llama 2 is a wrong one of Llama 3
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    known = {*(vocabulary or ()), *(token.content for token in listed)} if name in CLASS_ROLES else set()
    roles = {role: token for role, token in CLASS_ROLES.get(name, {}).items() if token in known}
    return Metadata({**roles, **config}, config.source)


def listed_tokens(file: Metadata) -> list[dict[str, Any]]:
    """The tokens that a tokenizer.json lists itself, each with a text and an id."""
    entries = file.get("added_tokens")
    return [
        entry
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int
    ]


def _from_entry(entry: Mapping[str, Any]) -> AddedToken:
    flags = {name: entry[name] for name in _FLAGS if isinstance(entry.get(name), bool)}
    return AddedToken(entry["content"], **flags)
