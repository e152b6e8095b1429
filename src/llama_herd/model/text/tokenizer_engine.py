"""The border to the `tokenizers` library: what goes in is checked, what it throws becomes our errors.

Nothing can interrupt the library, and strangers write the texts that it works on. So the steps that a
tokenizer.json may do with a text are looked at first: their time and output stay in proportion to it.
"""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tokenizers import Tokenizer as Engine

from llama_herd.errors import HerdError, ModelFileError
from llama_herd.model.reading.metadata import Metadata, quoted
from llama_herd.model.text.pre_tokenizers import PATTERNS

#: The largest of a Llama, that of Llama 4, has 28 MB.
MAX_FILE_BYTES = 32 << 20
#: The library's name for what is no Exception to Python.
PANIC = "PanicException"
#: Most tokens around a text.
MAX_SURROUNDINGS = 32

#: Most steps of one kind. DeepSeek's files have seven, no other Llama's has more.
MAX_STEPS = 16
#: Times that all replacements together may lengthen a text. Llama 2's do not: a space becomes one character.
MAX_GROWTH = 8
#: Characters of what is put before a text.
MAX_PREFIX_CHARS = 16
#: Characters of a regular expression that is looked into.
MAX_PATTERN_CHARS = 4_096

NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip")
PRE_TOKENIZERS = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "Whitespace", "WhitespaceSplit")
DECODERS = ("ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip")

#: Steps that make a text longer: a second one would multiply that.
ONCE = ("ByteLevel", "Metaspace")

#: One character of a text, one of a kind, or one of a set.
_ATOM = r"(?:[^\\\[\](){}|?*+^$.]|\\(?:[dDsSwWrnt]|[^\w\s]|[pP]\{\^?\w+\})|\[(?:\\.|[^\\\[\]])+\])"
#: Only the first atom may be left out and only the last may repeat without end: so nothing is tried twice.
_BRANCH = rf"(?:{_ATOM}(?:\?|\{{\d(?:,\d)?\}}))?(?:{_ATOM}){{0,16}}(?:{_ATOM}[*+])?"
_LINEAR = re.compile(rf"{_BRANCH}(?:\|{_BRANCH}){{0,16}}")


def load_engine(file: Metadata) -> Engine:
    """The engine of a tokenizer.json. Raises ModelFileError, which names the part that cannot be used."""
    kind = file.nested("model").get("type")
    if kind not in (None, "BPE"):
        raise file.error("model.type", f"is {quoted(kind)}, only 'BPE' is supported")
    check_steps(file)
    # The text of what was checked: of a key that appears twice the library might take the other value.
    # A text is neither cut, filled nor put into a template, whatever somebody trained with.
    checked = json.dumps({**file, "truncation": None, "padding": None, "post_processor": None})
    with no_panic(ModelFileError, f"{file.source}: not a tokenizer. Fetch it again."):
        try:
            return Engine.from_str(checked)
        except Exception as error:  # the library raises nothing narrower
            problem = str(error)[:200]
            raise ModelFileError(f"{file.source}: not a tokenizer: {problem}. Fetch it again.") from error


def surroundings(file: Metadata) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """The ids that the `post_processor` of a tokenizer.json puts before a text and behind it; or why not.

    The library itself puts them around a text of one token.
    """
    step = file.get("post_processor")
    if step is None:
        return (), (), ""
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    try:
        engine = Engine.from_str(json.dumps({"version": "1.0", "model": model, "post_processor": step}))
        made = engine.encode("a")
    except BaseException as error:  # the library raises nothing narrower, or panics
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        return (), (), f"cannot be read: {str(error)[:100]}"
    ids, mask = tuple(made.ids), list(made.special_tokens_mask)
    if mask.count(0) != 1:
        return (), (), f"writes a text {mask.count(0)} times"
    if len(ids) > MAX_SURROUNDINGS:
        return (), (), f"puts {len(ids) - 1} tokens around a text, limit {MAX_SURROUNDINGS}"
    at = mask.index(0)
    return ids[:at], ids[at + 1 :], ""


@contextmanager
def no_panic(failure: type[HerdError], *arguments: str) -> Iterator[None]:
    """Raise a failure where the library panics: for Python that is no Exception, and would end a worker."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == PANIC:
            raise failure(*arguments) from None
        raise


def check_steps(file: Metadata) -> None:
    """Raise ModelFileError, which names the part, unless a tokenizer.json has steps as above only."""
    growth = 1.0
    for step in _steps(file, "normalizer", "normalizers", NORMALIZERS):
        growth *= _growth(step)
    if growth > MAX_GROWTH:
        raise file.error("normalizer", f"makes a text up to {growth:g} times as long, limit {MAX_GROWTH}")
    for step in _steps(file, "pre_tokenizer", "pretokenizers", PRE_TOKENIZERS):
        if step.text("type") == "Split":
            _check_pattern(step)
    for step in _steps(file, "decoder", "decoders", DECODERS):
        if step.text("type") == "Replace":
            step.nested("pattern").text("String")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if file.nested("model").get(key):
            raise file.error(f"model.{key}", "is not empty, which is not supported")


def decoder_kinds(file: Metadata) -> frozenset[str]:
    """The types of all steps that turn tokens into text."""
    return frozenset(step.text("type") for step in _steps(file, "decoder", "decoders", DECODERS))


def _steps(file: Metadata, part: str, inner: str, known: Collection[str]) -> list[Metadata]:
    """The steps of one part, sequences laid flat. Raises ModelFileError at one of an unknown type."""
    waiting, steps = [file[part]] if part in file else [], list[Metadata]()
    while waiting:
        found, source = waiting.pop(0), f"{file.source}: {part}"
        if not isinstance(found, Metadata | dict):
            needed = "an object is needed. Fetch it again."
            raise ModelFileError(f"{source} holds a {type(found).__name__}, {needed}")
        step = Metadata(found, source).without_nulls()
        kind, steps_within = step.text("type"), step.get(inner)
        if kind == "Sequence":
            if not isinstance(steps_within, list):
                raise step.error(inner, f"is of type {type(steps_within).__name__}, a list is needed")
            waiting[:0] = steps_within
        elif kind not in known:
            raise step.error("type", f"is {quoted(kind)}, supported are {', '.join(known)}")
        else:
            steps.append(step)
        if len(steps) + len(waiting) > MAX_STEPS:
            raise file.error(part, f"has over {MAX_STEPS} steps, which is the limit")
    kinds = [step.text("type") for step in steps]
    twice = [kind for kind in ONCE if kinds.count(kind) > 1]
    if twice:
        raise file.error(part, f"has {kinds.count(twice[0])} steps of type {twice[0]}, limit 1")
    return steps


def _growth(step: Metadata) -> float:
    """The factor by which a normalizer can lengthen a text."""
    if step.text("type") == "Prepend" and len(step.text("prepend")) > MAX_PREFIX_CHARS:
        num_chars = len(step.text("prepend"))
        raise step.error("prepend", f"has {num_chars} characters, limit {MAX_PREFIX_CHARS}")
    if step.text("type") != "Replace":
        return 1.0
    pattern, content = step.nested("pattern").text("String"), step.text("content")
    if not pattern:
        raise step.error("pattern", "is empty, so it is found everywhere")
    return max(1.0, len(content) / len(pattern))


def _check_pattern(step: Metadata) -> None:
    pattern = step.nested("pattern")
    regex = pattern.text("Regex", "")
    is_linear = len(regex) <= MAX_PATTERN_CHARS and _LINEAR.fullmatch(regex)
    if not is_linear and regex not in PATTERNS:
        raise pattern.error("Regex", f"may take forever on some texts: {quoted(regex)}")
