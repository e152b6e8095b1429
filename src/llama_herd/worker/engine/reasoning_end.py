"""Where an output's reasoning ends: what a job asks of its answer counts behind it."""

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
        """What of the next text belongs to the reasoning, and what to the answer."""
        if self._is_reasoning is None:
            text, self._held = self._held + text, ""
            self._is_reasoning = self._begins(text)
            if self._is_reasoning is None:
                self._held = text
                return "", ""
        return self._ended(text) if self._is_reasoning else ("", text)

    def close(self) -> str:
        """What was held is no reasoning: call once, after the last text."""
        return self._held if self._is_reasoning is None else ""

    def _begins(self, text: str) -> bool | None:
        """Whether an output that begins so begins with reasoning; None: it may."""
        core, opening = text.lstrip(), self._form.opening
        if core.startswith(opening):
            return True
        return None if opening.startswith(core) else False

    def _ended(self, text: str) -> tuple[str, str]:
        """The same for text within reasoning, of which the last was `_held`."""
        closing, known = self._form.closing, self._held
        end = (known + text).find(closing)
        if end < 0:
            self._held = (known + text)[1 - len(closing) :]
            return text, ""
        self._is_reasoning = False
        end += len(closing) - len(known)
        return text[:end], text[end:]
