"""ServedForms: constraints of forms that a server enforces, and that are checked here, id by id."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.structured_outputs import FormKind, OutputForm
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.grammars.grammars import Grammars
from llama_herd.worker.grammars.whole_output import WholeOutput


@dataclass(eq=False, slots=True)
class ServedConstraint(Constraint):
    """The way of an output through its grammar, with the form that its server is asked to keep."""

    form: OutputForm


@dataclass(frozen=True)
class ServedForms:
    """Makes constraints, where `kinds` has the form's kind. `refusal`: the error of one that it has not."""

    grammars: Grammars
    kinds: Collection[FormKind]
    refusal: Callable[[str], FieldError]

    @property
    def figures(self) -> GrammarFigures:
        """Those of the grammars."""
        return self.grammars.figures

    def constraints(self, form: OutputForm, num: int) -> list[ServedConstraint | None]:
        """Constraints for the outputs of a job; none for a chat whose calls of tools may be anything.

        Raises InvalidJob and GenerationError, as `Grammars` does, and for a form that no server can keep.
        """
        if form.kind == "output" and not _must_hold(WholeOutput.read(form.text)):
            return [None] * num
        if form.kind not in self.kinds:
            raise InvalidJob([self.refusal(form.field)])
        made = self.grammars.constraints(form, num)
        return [ServedConstraint(one.matcher, one.executor, one.vocab_size, form) for one in made]

    def close(self) -> None:
        """End the helpers."""
        self.grammars.close()


def _must_hold(output: WholeOutput) -> bool:
    """Whether something of a whole output is demanded, not only read."""
    return output.must_call or output.answer is not None or any(tool.must_hold for tool in output.tools)
