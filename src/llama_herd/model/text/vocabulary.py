"""The tokens that a GGUF file lists, which of them are text, and the names of those that end a generation.

Files often say only one of the ends that their model has. The names are llama.cpp's. Unlike there, a token of
such a name among the words of a vocabulary, as is "</s>" in Qwen 2's, is text: callers ask about added tokens
only.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from gguf import TokenType

from llama_herd.model.reading.metadata import Metadata, quoted

MAX_TOKENS = 1 << 20
#: Llama-2's longest token has 16 characters, Llama-3's 128. Merges are looked for at every cut of a token.
MAX_TOKEN_CHARS = 1_024
#: Most characters of all tokens together; the 262,144 tokens of Gemma have two million.
MAX_CHARS = 8 << 20

_TYPES = frozenset(map(int, TokenType))
#: Types of tokens that add nothing to a text.
SILENT = tuple(map(int, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)))

MODEL_KEY = "tokenizer.ggml.model"
TOKENS_KEY = "tokenizer.ggml.tokens"
TYPES_KEY = "tokenizer.ggml.token_type"
MERGES_KEY = "tokenizer.ggml.merges"
BOS_KEY = "tokenizer.ggml.bos_token_id"
UNK_KEY = "tokenizer.ggml.unknown_token_id"
#: End of text, of turn and of message: each ends a generation.
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
#: What a SentencePiece vocabulary means where a file does not say it, as in llama.cpp.
SPM_IDS = {UNK_KEY: 0, BOS_KEY: 1, EOS_KEYS[0]: 2}

TEMPLATE_KEY = "tokenizer.chat_template"
#: What in a template looks like a mark of a turn.
_MARK = re.compile(r"<[^<>\s]{1,64}>|\[[^\[\]\s]{1,64}\]")

_ADDED = (int(TokenType.CONTROL), int(TokenType.USER_DEFINED))
_ID_SUFFIX = "_token_id"

#: Ends of a text, of a turn, of a message, of a call.
ENDS = frozenset(
    (
        *("</s>", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "[e~["),
        *("<EOT>", "_<EOT>", "[EOT]", "<|eom_id|>"),
        *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>"),
    )
)

#: Where completed code ends, by the key of a GGUF file that names it and else by its name.
_FIM = "tokenizer.ggml.fim_{}_token_id"
CODE_ENDS = {
    _FIM.format("pad"): {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    _FIM.format("rep"): {"<|fim_repo|>", "<fim-repo>", "<|repo_name|>", "<reponame>", "<REPO>"},
    _FIM.format("sep"): {"<|file_sep|>"},
}

#: Names that end nothing in a vocabulary that has all of these, too.
_NO_ENDS = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|calls|>", "<|flush|>"}),
    ("</s>", {"<|tool_response>"}),
    ("</s>", {"<|plamo:eos|>"}),
)


class Vocabulary:
    """Each id's token and type; those that begin or end a text are control tokens unless they are words."""

    def __init__(self, metadata: Metadata) -> None:
        """Read and check the metadata of a GGUF file. Raises ModelFileError, which names the key."""
        self.tokens = _read_tokens(metadata)
        self.types = read_types(metadata, self.tokens)
        self.complaints: list[str] = []  # of keys that say what cannot be, or are not there
        self._metadata = metadata
        self._ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        self._is_spm = metadata.get(MODEL_KEY) == "llama"
        self.bos_id, self.eos_ids = self._id(BOS_KEY), self._read_ends()
        self._silence([self._id(UNK_KEY)], TokenType.UNKNOWN)
        self._silence([*self.eos_ids, self.bos_id], TokenType.CONTROL)
        self.eos_id = self._id(EOS_KEYS[0])  # the one that is called so
        self._look_for_gaps()

    def ids(self, kind: TokenType) -> dict[str, int]:
        """The tokens of a type and their ids."""
        wanted = int(kind)  # compares faster
        pairs = enumerate(zip(self.tokens, self.types, strict=True))
        return {token: token_id for token_id, (token, found) in pairs if found == wanted}

    def _id(self, key: str) -> int | None:
        """The id under a key; where there is none, what the kind of vocabulary means by it."""
        stated = read_id(self._metadata, key, len(self.tokens))
        meant = SPM_IDS.get(key, len(self.tokens)) if self._is_spm else len(self.tokens)
        if stated is not None or meant >= len(self.tokens):
            return stated
        is_text = self.types[meant] == TokenType.USER_DEFINED or self._is_word(meant)
        return None if is_text else meant

    def _read_ends(self) -> frozenset[int]:
        """Ends by the keys of the file, and tokens that are ends by their names unless they are words."""
        known = {key: token_id for key in (*EOS_KEYS, *CODE_ENDS) if (token_id := self._id(key)) is not None}
        named = [self._ids[name] for name in end_names(self._ids, known)]
        words = [
            token_id for token_id in named if self.types[token_id] not in _ADDED and self._is_word(token_id)
        ]
        for token_id in set(words) - {*known.values()}:
            self._complain(TOKENS_KEY, f"has the word {quoted(self.tokens[token_id])}, which ends nothing")
        for key, token_id in known.items():
            if self._is_word(token_id):
                word = quoted(self.tokens[token_id])
                self._complain(
                    key, f"is {token_id}, which is the word {word}: it ends a text, and is read as one"
                )
        if EOS_KEYS[0] not in known and not self._is_spm:
            self._complain(EOS_KEYS[0], "is missing, so only tokens of known names end a text")
        return frozenset((*known.values(), *(token_id for token_id in named if token_id not in words)))

    def _silence(self, token_ids: Iterable[int | None], kind: TokenType) -> None:
        """Give tokens that no text becomes this type, should the file not do so."""
        silent = (TokenType.CONTROL, TokenType.UNKNOWN)
        for token_id in token_ids:
            if token_id is not None and self.types[token_id] not in silent and not self._is_word(token_id):
                self.types[token_id] = kind

    def _look_for_gaps(self) -> None:
        """Complain of what is left out of this file, or stands in for something."""
        for key in self._metadata:
            if key.endswith(_ID_SUFFIX) and read_id(self._metadata, key, len(self.tokens)) is None:
                value = quoted(self._metadata[key])
                self._complain(
                    key, f"is {value}, no id of these {len(self.tokens)} tokens, so it is left out"
                )
        if TYPES_KEY not in self._metadata:
            self._complain(TYPES_KEY, "is missing, so all tokens but bytes, BOS and ends are taken for text")
        elif unknown := set(self._metadata.array(TYPES_KEY, "iu", len(self.tokens)).tolist()) - _TYPES:
            problem = f"holds {min(unknown)}, known are 1 to {max(_TYPES)}, so its tokens count as unused"
            self._complain(TYPES_KEY, problem)
        if self._is_spm and "tokenizer.ggml.scores" not in self._metadata:
            self._complain(
                "tokenizer.ggml.scores", "is missing, so words may be cut otherwise than elsewhere"
            )
        for name in self._read_in_pieces():
            self._complain(TYPES_KEY, f"calls {quoted(name)} text, so the chat template's is read in pieces")

    def _read_in_pieces(self) -> list[str]:
        """Marks in the chat templates that are whole tokens, but such as no text becomes."""
        templates = [text for key, text in self._metadata.items() if key.startswith(TEMPLATE_KEY)]
        marks = {mark for text in templates if isinstance(text, str) for mark in _MARK.findall(text)}
        ids = {mark: self._ids[mark] for mark in sorted(marks & self._ids.keys())}
        return [
            mark
            for mark, token_id in ids.items()
            if self.types[token_id] == TokenType.NORMAL and not self._is_word(token_id)
        ]

    def _is_word(self, token_id: int) -> bool:
        """Whether texts become this token by themselves: it is a byte, one character, or a join of two."""
        token = self.tokens[token_id]
        if self.types[token_id] == TokenType.BYTE:
            return True
        if self.types[token_id] != TokenType.NORMAL:
            return False
        if len(token) == 1:
            return True
        merges = self._metadata.get(MERGES_KEY)
        if isinstance(merges, tuple) and not self._is_spm:
            return any(token == merge.replace(" ", "", 1) for merge in merges)
        return any(token[:cut] in self._ids and token[cut:] in self._ids for cut in range(1, len(token)))

    def _complain(self, key: str, problem: str) -> None:
        self.complaints.append(f"{self._metadata.source}: {key} {problem}")


def end_names(tokens: Collection[str], known_roles: Collection[str] = ()) -> set[str]:
    """Filter added tokens to those that end a generation; ends of code only for roles not known by id."""
    code = {name for role, names in CODE_ENDS.items() if role not in known_roles for name in names}
    no_ends = {name for name, company in _NO_ENDS if company <= set(tokens)}
    return set(tokens) & ((ENDS - no_ends) | code)


def read_id(metadata: Metadata, key: str, num_tokens: int) -> int | None:
    """The token's id under a key; None where there is none, or what stands there is no id."""
    value = metadata.get(key)
    return value if type(value) is int and 0 <= value < num_tokens else None


def _read_tokens(metadata: Metadata) -> tuple[str, ...]:
    stated = metadata.strings(TOKENS_KEY)
    if not 1 <= len(stated) <= MAX_TOKENS:
        raise metadata.error(TOKENS_KEY, f"has {len(stated)} elements, allowed are 1 to {MAX_TOKENS}")
    # Several may be empty: each gets the name that it has in llama.cpp.
    tokens = tuple(token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(stated))
    if len(set(tokens)) < len(tokens):
        token, count = Counter(tokens).most_common(1)[0]
        raise metadata.error(TOKENS_KEY, f"has the token {quoted(token)} {count} times, allowed is once")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_CHARS:
        raise metadata.error(TOKENS_KEY, f"has a token of {longest} characters, limit {MAX_TOKEN_CHARS}")
    num_chars = sum(map(len, tokens))
    if num_chars > MAX_CHARS:
        raise metadata.error(TOKENS_KEY, f"has {num_chars} characters in all, limit {MAX_CHARS}")
    return tokens


def read_types(metadata: Metadata, tokens: Sequence[str]) -> list[int]:
    """The types; without them all are text but what stands for bytes. One that is none is of no use."""
    if TYPES_KEY not in metadata:
        names = {f"<0x{byte:02X}>" for byte in range(256)} if metadata.get(MODEL_KEY) == "llama" else set()
        return [int(TokenType.BYTE if token in names else TokenType.NORMAL) for token in tokens]
    types: list[int] = metadata.array(TYPES_KEY, "iu", len(tokens)).tolist()
    return [kind if kind in _TYPES else int(TokenType.UNUSED) for kind in types]
