"""ServedForms: forms that a server keeps while it draws, and that are checked here in a whole answer."""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal

from llguidance import LLTokenizer

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.tasks.protocol.structured_outputs import FormKind, OutputForm
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.grammars.grammars import Grammars
from llama_herd.worker.grammars.whole_output import WholeOutput


@dataclass(eq=False, slots=True)
class ServedConstraint(Constraint):
    """What a whole answer has to be. It holds no token back: the server does, by a grammar of its own."""

    form: OutputForm
    vocabulary: LLTokenizer

    @property
    def is_over(self) -> bool:
        """Never: the server says when an answer is over."""
        return False

    def add(self, token_id: int) -> None:
        """Go on by a token, whatever it is."""

    def check_whole(self, text: str) -> None:
        """Raise GenerationError unless a whole answer follows the form.

        Of JSON the values count: another server puts other spaces, and spells characters in other ways.
        """
        try:
            shown = _as_ours(json.loads(text)) if self.form.kind == "json" else text
            ids = self.vocabulary.tokenize_bytes(shown.encode())
        except (ValueError, RecursionError):
            ids = None
        if ids is None or self.matcher.try_consume_tokens(ids) < len(ids) or not self.matcher.is_accepting():
            message = "the server's answer does not follow the job's schema or grammar"
            raise GenerationError(ErrorCode.GRAMMAR_MISMATCH, message)


@dataclass(frozen=True)
class ServedForms:
    """Makes constraints of the `kinds` that a server keeps. `refusal`: the error of another one's field.

    as_kept: the form that an answer has if the server keeps this one.
    """

    grammars: Grammars
    kinds: Collection[FormKind]
    refusal: Callable[[str], FieldError]
    as_kept: Callable[[OutputForm], OutputForm] = lambda form: form

    @property
    def figures(self) -> GrammarFigures:
        """Those of the grammars."""
        return self.grammars.figures

    def constraints(self, form: OutputForm, num: int) -> list[ServedConstraint | None]:
        """Constraints for the outputs of a job; none for a chat whose calls of tools may be anything.

        Raises InvalidJob and GenerationError, as `Grammars` does, and for a form that no server can keep.
        """
        demanded = _demanded(form)
        if not demanded:
            return [None] * num
        if form.kind not in self.kinds:
            raise InvalidJob([self.refusal(demanded)])
        form = self.as_kept(form)
        checked = form._replace(kind="value") if form.kind == "json" else form
        made, vocabulary = self.grammars.constraints(checked, num), self.grammars.vocabulary
        return [ServedConstraint(one.matcher, one.executor, one.vocab_size, form, vocabulary) for one in made]

    def close(self) -> None:
        """End the helpers."""
        self.grammars.close()


#: A text in JSON, or a number as Python writes it with an exponent.
_TEXT_OR_EXPONENT = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9.]+e[-+][0-9]+')


def _as_ours(value: object) -> str:
    """A value in JSON as our grammars let it through: numbers with bounds have no exponent there."""
    shown = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return _TEXT_OR_EXPONENT.sub(
        lambda found: found[0] if found[0][0] == '"' else f"{Decimal(found[0]):f}", shown
    )


def _demanded(form: OutputForm) -> str:
    """The field that demands a form; empty: all of it is only what calls of tools would look like."""
    if form.kind != "output":
        return form.field
    output = WholeOutput.read(form.text)
    if output.must_call:
        return "tool_choice"
    strict = (tool.field.replace("parameters", "strict") for tool in output.tools if tool.must_hold)
    return output.answer.field if output.answer is not None else next(strict, "")
