"""The border to the `tokenizers` library: what goes in is checked, what it throws becomes our errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

from tokenizers import Tokenizer as Engine

from llama_herd.errors import HerdError, ModelFileError
from llama_herd.model.reading.file_errors import quoted
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.tokenizer_steps import check_steps

#: The largest of a Llama, that of Llama 4, has 28 MB.
MAX_FILE_BYTES = 32 << 20
#: The library's name for what is no Exception to Python.
PANIC = "PanicException"
#: Most tokens around a text.
MAX_SURROUNDINGS = 32


def load_engine(file: Metadata) -> Engine:
    """The engine of a tokenizer.json. Raises ModelFileError, which names the part that cannot be used."""
    kind = file.nested("model").get("type")
    if kind not in (None, "BPE"):
        raise file.error("model.type", f"is {quoted(kind)}, only 'BPE' is supported")
    check_steps(file)
    # The text of what was checked: of a key that appears twice the library might take the other value.
    # A text is neither cut, filled nor put into a template, whatever somebody trained with.
    checked = json.dumps({**file, "truncation": None, "padding": None, "post_processor": None})
    with no_panic(ModelFileError(f"{file.source}: not a tokenizer. Fetch it again.")):
        try:
            return Engine.from_str(checked)
        except Exception as error:  # the library raises nothing narrower
            problem = str(error)[:200]
            raise ModelFileError(f"{file.source}: not a tokenizer: {problem}. Fetch it again.") from error


class Surroundings(NamedTuple):
    """The ids that the `post_processor` of a tokenizer.json puts before a text and behind it."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    complaint: str = ""  # why it cannot be followed

    @classmethod
    def from_file(cls, file: Metadata) -> Self:
        """Let the library itself put them around a text of one token."""
        step = file.get("post_processor")
        if step is None:
            return cls()
        model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
        try:
            engine = Engine.from_str(json.dumps({"version": "1.0", "model": model, "post_processor": step}))
            made = engine.encode("a")
        except BaseException as error:  # the library raises nothing narrower, or panics
            if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                raise
            return cls(complaint=f"cannot be read: {str(error)[:100]}")
        ids, mask = tuple(made.ids), list(made.special_tokens_mask)
        if mask.count(0) != 1:
            return cls(complaint=f"writes a text {mask.count(0)} times")
        if len(ids) > MAX_SURROUNDINGS:
            return cls(complaint=f"puts {len(ids) - 1} tokens around a text, limit {MAX_SURROUNDINGS}")
        at = mask.index(0)
        return cls(ids[:at], ids[at + 1 :])


@contextmanager
def no_panic(failure: HerdError) -> Iterator[None]:
    """Raise `failure` where the library panics: for Python that is no Exception, and would end a worker."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == PANIC:
            raise failure from None
        raise
