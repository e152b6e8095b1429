"""Finds where the reasoning of an output ends: what a job asks of its answer holds from there on."""

from llama_herd.model.parsers.formats import ReasoningFormat


class ReasoningEnd:
    """Parts the text of an output, as it comes, into its reasoning with its marks, and the answer.

    Text is held as long as it may be the beginning of the opening mark.
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
        core, opening = text.lstrip(), self._form.opening
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
