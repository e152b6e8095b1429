"""Ids to text, one sequence at a time: whole characters only, and never a piece of a stop string."""

import codecs
from collections.abc import Sequence

from llama_herd.model.parsers.formats import ReasoningFormat
from llama_herd.model.parsers.output_parser import SPACE, MarkFinder


class ReasoningEnd:
    """Parts the text of an output, as it comes, into its reasoning with its marks, and the answer.

    What a job asks of its answer holds from where the reasoning ends. Text is held as long as it may be the
    beginning of the opening mark.
    """

    def __init__(self, form: ReasoningFormat, *, begins_in_reasoning: bool) -> None:
        self._form = form
        self._is_reasoning: bool | None = begins_in_reasoning or None  # None: not known yet
        self._held = ""  # what may be the beginning of the mark that is looked for

    def split(self, text: str) -> tuple[str, str]:
        """Split the next piece of text into its part of the reasoning and its part of the answer."""
        if self._is_reasoning is None:
            text, self._held = self._held + text, ""
            self._is_reasoning = self._begins(text)
            if self._is_reasoning is None:
                self._held = text
                return "", ""
        return self._ended(text) if self._is_reasoning else ("", text)

    def finish(self) -> str:
        """Return the text that is still held, as part of the answer; call once, after the last text."""
        return self._held if self._is_reasoning is None else ""

    def _begins(self, text: str) -> bool | None:
        """Whether an output that begins so begins with reasoning; None: it may."""
        core, opening = text.lstrip(SPACE), self._form.opening
        if core.startswith(opening):
            return True
        return None if opening.startswith(core) else False

    def _ended(self, text: str) -> tuple[str, str]:
        """Split text that comes within reasoning at the closing mark, which may have begun in `_held`."""
        closing, known = self._form.closing, self._held
        end = (known + text).find(closing)
        if end < 0:
            self._held = (known + text)[1 - len(closing) :]
            return text, ""
        self._is_reasoning = False
        end += len(closing) - len(known)
        return text[:end], text[end:]


class Detokenizer:
    """Turns the ids of one sequence into the text that may be shown.

    The text shown after n ids depends on those n ids alone. So a worker that takes over a job replays the
    recorded ids through a new Detokenizer and continues where the stream ends. Nothing else need be saved.

        writer = Detokenizer(tokenizer.pieces, stop=("END",))
        text = "".join(writer.write(i) for i in ids) + writer.finish()

    Without stop strings the joined text equals the decode of all ids at once, for any ids: bytes that are not
    UTF-8 become U+FFFD, and so does a character that is cut off at the end.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        stop: Sequence[str] = (),
        *,
        is_answer: bool = False,
        reasoning_end: ReasoningEnd | None = None,
    ) -> None:
        """`pieces[i]` are the bytes that token i stands for.

        An answer stands alone: it goes without the space with which many vocabularies begin a word. Behind
        `reasoning_end` stop strings are looked for; None: from the beginning.
        """
        self._pieces = pieces
        self._drops_space = is_answer
        self._stop = MarkFinder(stop) if stop else None
        self._reasoning_end = reasoning_end if stop else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._withheld = ""  # text that may be the beginning of a stop string
        self.has_stopped = False
        #: The stop string that was found. If several begin at the same place: the first in the job's list.
        self.met = ""

    def write(self, token_id: int, *, may_stop: bool = True) -> str:
        """Take one more id; return the text that may be shown now: often one token's, sometimes none.

        Without `may_stop`, stop strings are text like any other.
        """
        text = self._decoder.decode(self._pieces[token_id])
        if text and self._drops_space:
            text, self._drops_space = text.removeprefix(" "), False
        reasoning, text = self._split(text)
        return reasoning + (self._shown(text, is_last=False) if may_stop else text)

    def finish(self) -> str:
        """Return the text that was withheld; call once, after the last id."""
        reasoning, text = self._split(self._decoder.decode(b"", final=True))
        held = "" if self._reasoning_end is None else self._reasoning_end.finish()
        return reasoning + self._shown(held + text, is_last=True)

    def _split(self, text: str) -> tuple[str, str]:
        """The text as reasoning, in which stop strings mean nothing, and the rest."""
        return ("", text) if self._reasoning_end is None else self._reasoning_end.split(text)

    def _shown(self, text: str, *, is_last: bool) -> str:
        if self._stop is None:
            return text
        if self.has_stopped:
            return ""
        text = self._withheld + text
        if (found := self._stop.find(text, 0)) is not None:
            start, end = found
            self.has_stopped, self.met = True, text[start:end]
            return text[:start]
        num_shown = len(text) if is_last else self._stop.begun(text, 0)
        self._withheld = text[num_shown:]
        return text[:num_shown]
