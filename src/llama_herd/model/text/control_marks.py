"""Control marks: single characters that stand for control tokens while a chat template is rendered."""

import re
from collections.abc import Iterator, Mapping

from llama_herd.errors import ModelFileError
from llama_herd.model.text.control_tokens import ControlTokens

#: A mark is a low surrogate: a well-formed text holds none, and two side by side never form a pair.
FIRST_MARK = 0xDC00
MAX_MARKS = 0x3FF
#: Keeps what a message says from being a control token, and is no part of any text.
BREAK = "\udfff"

_MARK = re.compile("([\udc00-\udffe])")
_SURROGATE = re.compile("[\ud800-\udfff]")


class ControlMarks:
    """Marks for control tokens that stand in the sources of a model's templates, and for BOS and its like."""

    def __init__(self, sources: Mapping[str, str], control_tokens: ControlTokens) -> None:
        """Choose the marks. Raises ModelFileError when there are more control tokens than marks."""
        sources = {name: without_marks(source) for name, source in sources.items()}
        roles = set(control_tokens.roles.values())
        tokens = [
            token
            for token in control_tokens.ids
            if token in roles or any(token in source for source in sources.values())
        ]
        if len(tokens) > MAX_MARKS:
            raise ModelFileError(f"the chat templates name {len(tokens)} control tokens, limit {MAX_MARKS}.")
        self._marks = {token: chr(FIRST_MARK + number) for number, token in enumerate(tokens)}
        self._ids = {mark: control_tokens.ids[token] for token, mark in self._marks.items()}
        #: Marks of tokens that a template looks for in texts, such as the end of a turn's reasoning.
        self._sought = {
            token: mark
            for token, mark in self._marks.items()
            if any(_seeks(source, token) for source in sources.values())
        }
        self.sources = {name: self._marked(source) for name, source in sources.items()}
        self.roles = {role: self._marked(token) for role, token in control_tokens.roles.items()}

    def parts_of_answer(self, text: str) -> Iterator[str]:
        """The text of an assistant's turn in parts; those of odd places are marks that a template seeks."""
        if not self._sought:
            yield text
            return
        tokens = sorted(self._sought, key=len, reverse=True)
        for number, part in enumerate(re.split(f"({'|'.join(map(re.escape, tokens))})", text)):
            yield self._sought[part] if number % 2 else part

    def split(self, text: str) -> Iterator[int | str]:
        """The ids that the marks of a rendered text stand for, and the texts between them."""
        for part in _MARK.split(text):
            if part:
                yield self._ids.get(part, part)

    def _marked(self, text: str) -> str:
        for token in sorted(self._marks, key=len, reverse=True):
            text = text.replace(token, self._marks[token])
        return text


def _seeks(source: str, token: str) -> bool:
    """Whether a template asks for a token in a text, or cuts a text there."""
    literal = rf"""(?:'{re.escape(token)}'|"{re.escape(token)}")"""
    return re.search(rf"split\(\s*{literal}|{literal}\s+(?:not\s+)?in\b", source) is not None


class Breaks:
    """Tells control tokens that a template puts together from parts from those that a message spells.

    Phi-3's template writes '<|' + message.role + '|>', which no mark can stand for. So a break goes into
    whatever a message spells, and whole control tokens in the rendered text are the template's.
    """

    def __init__(self, control_tokens: ControlTokens) -> None:
        self._ids = control_tokens.ids
        tokens = sorted((token for token in self._ids if len(token) > 1), key=len, reverse=True)
        self._token = re.compile(f"({'|'.join(map(re.escape, tokens))})")
        self._starts = {token[:end] for token in tokens for end in range(1, len(token))}
        self._ends = {token[start:] for token in tokens for start in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)

    def protect(self, text: str) -> str:
        """A message's text with breaks wherever it spells a control token, or could be a part of one."""
        text = self._token.sub(lambda found: BREAK.join(found[0]), text)
        core = text.strip()
        lead, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        if any(core[:length] in self._ends for length in range(1, self._longest)):
            core = BREAK + core
        if any(core[-length:] in self._starts for length in range(1, self._longest)):
            core += BREAK
        return lead + core + tail if core else text

    def split(self, text: str) -> Iterator[int | str]:
        """The ids of the control tokens that a template has put together, and the texts between them."""
        for part in self._token.split(text):
            if part:
                yield self._ids.get(part, part.replace(BREAK, ""))


def without_marks(text: str) -> str:
    """A text in which nothing can be taken for a mark."""
    return _SURROGATE.sub("\ufffd", text)
