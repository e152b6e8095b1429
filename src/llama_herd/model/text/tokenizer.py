"""Text to token ids and back, for both kinds of Llama vocabularies and both kinds of files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from llama_herd.error_code import ErrorCode
from llama_herd.errors import BadInput, GenerationError, ModelFileError
from llama_herd.model.reading.metadata import OTHER_MODEL, Metadata, quoted
from llama_herd.model.text.byte_level import ByteLevelCodec
from llama_herd.model.text.spm import SpmCodec
from llama_herd.model.text.template_files import metadata_templates
from llama_herd.model.text.tokenizer_engine import no_panic
from llama_herd.model.text.tokenizer_json import TokenizerJson
from llama_herd.model.text.vocabulary import MODEL_KEY, Vocabulary


class Codec(Protocol):
    """A kind of vocabulary: it encodes texts, and tells the bytes that each id stands for."""

    pieces: tuple[bytes, ...]

    def encode(self, text: str) -> list[int]: ...


#: Kinds of vocabularies in GGUF files.
CODECS: Mapping[str, type[SpmCodec | ByteLevelCodec]] = {"llama": SpmCodec, "gpt2": ByteLevelCodec}


@dataclass(frozen=True)
class Tokenizer:
    """Encodes prompts and decodes what was generated.

        tokenizer = Tokenizer.from_metadata(file.metadata)
        tokenizer.decode(tokenizer.encode("Once upon a time"))  # " Once upon a time"

    No text becomes a control token: "</s>" in a prompt is four characters.
    """

    codec: Codec
    bos_id: int | None
    eos_ids: frozenset[int]  # each of them ends a generation
    chat_templates: Mapping[str, str]  # Jinja by name, as the files give it: untrusted
    first_ids: tuple[int, ...] = ()  # what the file says that a text begins with
    last_ids: tuple[int, ...] = ()  # and ends with
    complaints: tuple[str, ...] = ()  # what the files say that cannot be, and was left out

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """Build from the metadata of a GGUF file. Raises ModelFileError, which names the key."""
        kind = metadata.text(MODEL_KEY)
        if kind not in CODECS:
            problem = f"is {quoted(kind)}, 'llama' and 'gpt2' are supported"
            raise metadata.error(MODEL_KEY, problem, OTHER_MODEL)
        vocabulary = Vocabulary(metadata)
        with no_panic(ModelFileError, f"{metadata.source}: not a tokenizer. Fetch or convert it again."):
            codec = CODECS[kind](vocabulary, metadata)
        templates, left_out = metadata_templates(metadata)
        complaints = vocabulary.complaints + left_out
        around: dict[str, tuple[int, ...]] = {}
        bos, eos = ("bos", vocabulary.bos_id, codec.adds_bos), ("eos", vocabulary.eos_id, False)
        for role, token_id, by_default in (bos, eos):
            flag = f"tokenizer.ggml.add_{role}_token"
            adds = metadata.flag(flag, by_default)
            around[role] = (token_id,) if adds and token_id is not None else ()
            if adds and token_id is None and flag in metadata:
                complaints.append(
                    f"{metadata.source}: {flag} is true, but there is no such token: none is put"
                )
        bos_id, eos_ids = vocabulary.bos_id, vocabulary.eos_ids
        return cls(codec, bos_id, eos_ids, templates, around["bos"], around["eos"], tuple(complaints))

    @classmethod
    def from_json(cls, file: TokenizerJson) -> Self:
        """Build from a tokenizer.json and the files beside it."""
        templates, left_out = file.read_chat_templates()
        return cls(
            file,
            file.bos_id,
            file.eos_ids,
            templates,
            file.first_ids,
            file.last_ids,
            (*file.complaints, *left_out),
        )

    @property
    def adds_bos(self) -> bool:
        """Whether a text begins with BOS."""
        return self.bos_id is not None and self.bos_id in self.first_ids

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes that each id adds to a text; control and unknown tokens add none."""
        return self.codec.pieces

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """The ids of a text between those that the model's file puts around one.

        With `add_bos` False the text stands alone, and with True it has BOS before it.
        A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD. Raises GenerationError "tokenizer_error"
        when the engine fails on the text.
        """
        if add_bos and self.bos_id is None:
            raise BadInput("this vocabulary has no BOS token; encode with add_bos=False")
        problem = "prompt: the model's tokenizer fails on this text"
        with no_panic(GenerationError, ErrorCode.TOKENIZER_ERROR, problem):
            ids = self.codec.encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        if add_bos is False:
            return ids
        bos = () if self.bos_id is None else (self.bos_id,)
        return [*(bos if add_bos else self.first_ids), *ids, *self.last_ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, a leading space kept; bytes that are not UTF-8 become U+FFFD."""
        pieces = self.pieces
        return b"".join([pieces[token_id] for token_id in ids]).decode(errors="replace")

    def text_of(self, ids: Iterable[int]) -> str:
        """The text that `encode` makes these ids of: without the space that it puts in front of a text."""
        text = self.decode(ids)
        puts_space = self.decode(self.encode("a", add_bos=False)).startswith(" ")
        return text.removeprefix(" ") if puts_space else text
