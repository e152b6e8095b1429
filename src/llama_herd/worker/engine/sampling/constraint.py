"""Constraint: which tokens a job's schema or grammar lets come next."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

#: In the engine's messages of a token that may not follow, and of a place where none may; its other ones are
#: of limits.
NOT_ALLOWED, DEAD_END = "doesn't satisfy the grammar", "NoExtension"


@dataclass(eq=False, slots=True)
class Constraint:
    """The way of one output through its grammar. Where it stands follows from the output's ids alone."""

    matcher: "LLMatcher"  # this output's own
    executor: "LLExecutor"  # has the threads that compute masks
    vocab_size: int

    @property
    def is_over(self) -> bool:
        """Whether the grammar lets nothing follow but an end."""
        return self.matcher.is_stopped()

    def add(self, token_id: int) -> None:
        """Go on by a token. Raises GenerationError where the grammar does not let it follow."""
        self.matcher.consume_token(token_id)
        self.check()

    def check(self) -> None:
        """Raise GenerationError if the way has ended in an error.

        The error names none of the engine's messages, since these quote the grammar and the output.
        """
        if not self.matcher.is_error():
            return
        problem = self.matcher.get_error()
        if problem.startswith(DEAD_END):
            message = "the schema or grammar lets nothing follow the text so far, not even an end"
            raise GenerationError(ErrorCode.GRAMMAR_DEAD_END, message)
        if NOT_ALLOWED in problem:
            message = "the output's tokens do not follow its schema or grammar as this worker reads it"
            raise GenerationError(ErrorCode.GRAMMAR_MISMATCH, message)
        message = "the schema or grammar takes too much work for one token"
        raise GenerationError(ErrorCode.GRAMMAR_TOO_COMPLEX, message)
