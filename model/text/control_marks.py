"""Marks: single characters that stand for control tokens while a chat template is rendered."""

import re
from collections.abc import Iterator

from llama_herd.errors import ModelFileError
from llama_herd.model.text.control_tokens import ControlTokens

#: A mark is a low surrogate: a well-formed text holds none, and two side by side never form a pair.
FIRST_MARK = 0xDC00
MAX_MARKS = 0x400

_MARK = re.compile("([\udc00-\udfff])")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Marks:
    """The marks of a template: of the control tokens that stand in its source, and of BOS and EOS."""

    def __init__(self, source: str, control_tokens: ControlTokens) -> None:
        """Raises ModelFileError when there are more control tokens than marks."""
        source = without_marks(source)
        ends = (control_tokens.bos, control_tokens.eos)
        tokens = [token for token in control_tokens.ids if token in source or token in ends]
        if len(tokens) > MAX_MARKS:
            raise ModelFileError(f"the chat template names {len(tokens)} control tokens, limit {MAX_MARKS}.")
        self._marks = {token: chr(FIRST_MARK + number) for number, token in enumerate(tokens)}
        self._ids = {mark: control_tokens.ids[token] for token, mark in self._marks.items()}
        for token in sorted(tokens, key=len, reverse=True):
            source = source.replace(token, self._marks[token])
        self.source = source  # the template's, with marks for its control tokens

    def __getitem__(self, token: str) -> str:
        return self._marks[token]

    def split(self, text: str) -> Iterator[int | str]:
        """The ids that the marks of a rendered text stand for, and the texts between them."""
        for part in _MARK.split(text):
            yield self._ids.get(part, part)


def without_marks(text: str) -> str:
    """A text in which nothing can be taken for a mark."""
    return _SURROGATE.sub("\ufffd", text)
