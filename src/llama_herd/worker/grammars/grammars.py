"""Grammars: constraints for jobs that ask for a form of their output."""

from collections import OrderedDict
from threading import Lock
from time import monotonic

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.model.text.helper import Answer, Helper, Limits
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.structured_outputs import OutputForm
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.grammars.vocabulary import vocabulary_of

#: The helper's program.
JUDGE = "llama_herd.worker.grammars.judge"

JUDGE_LIMITS = Limits(cpu_s=1.0, wall_s=10.0, memory_bytes=256 << 20)

#: Grammars that are kept for the next job with the same form.
MAX_KEPT = 64


class Grammars:
    """Makes constraints over one vocabulary. Any thread may call.

    A form that no job has had before is judged in a helper under limits, then built here under limits of the
    engine's own. The vocabulary is read when the first job asks for a form.
    """

    def __init__(self, tokenizer: Tokenizer, num_threads: int, limits: Limits = JUDGE_LIMITS) -> None:
        """`num_threads` compute the masks of a step."""
        self._tokenizer = tokenizer
        self._num_threads = num_threads
        self._limits = limits
        self._lock = Lock()
        self._helper: Helper | None = None
        self._engine: tuple[LLTokenizer, LLExecutor] | None = None
        self._kept = OrderedDict[tuple[str, str], LLMatcher]()
        self.figures = GrammarFigures()

    def constraints(self, form: OutputForm, num: int) -> list[Constraint]:
        """Constraints for the outputs of a job, each at its beginning.

        Raises InvalidJob, by the field of the form, if it is not one, and GenerationError if it takes too
        much. No error quotes the form.
        """
        with self._lock:
            self.figures = self.figures.asked()
            matcher = self._kept.pop((form.kind, form.text), None) or self._counted(form)
            self._kept[form.kind, form.text] = matcher
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            vocabulary, executor = self._engine_parts()
            return [Constraint(matcher.deep_copy(), executor, vocabulary.vocab_size) for _ in range(num)]

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            self._end_helper()

    def _counted(self, form: OutputForm) -> LLMatcher:
        started_s = monotonic()
        try:
            return self._built(form)
        except (InvalidJob, GenerationError):
            self.figures = self.figures.refused()
            raise
        finally:
            self.figures = self.figures.built(monotonic() - started_s)

    def _built(self, form: OutputForm) -> LLMatcher:
        answer = self._judged(form)
        if answer.kind == "limit":
            message = f"{form.field}: the schema or grammar {answer.text}"
            raise GenerationError(ErrorCode.GRAMMAR_TOO_COMPLEX, message)
        if answer.kind != "text":
            raise InvalidJob([FieldError(form.field, answer.text)])
        vocabulary, _ = self._engine_parts()
        matcher = LLMatcher(vocabulary, answer.text, log_level=0, limits=_parser_limits())
        if matcher.is_error():
            message = f"{form.field}: the schema or grammar is too large for this model's vocabulary"
            raise GenerationError(ErrorCode.GRAMMAR_TOO_COMPLEX, message)
        return matcher

    def _judged(self, form: OutputForm) -> Answer:
        """What the helper says; one that went over a limit is ended, and the next form gets another."""
        answer = Answer("ready")
        if self._helper is None:
            self._helper = Helper(JUDGE, self._limits)
            answer = self._helper.start()
        if answer.kind == "ready":
            answer = self._helper.ask((form.kind, form.text))
        if answer.kind == "limit":
            self._end_helper()
        return answer

    def _end_helper(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _engine_parts(self) -> tuple[LLTokenizer, LLExecutor]:
        if self._engine is None:
            self._engine = vocabulary_of(self._tokenizer), LLExecutor(self._num_threads)
        return self._engine


def _parser_limits() -> LLParserLimits:
    """What a grammar may take while it runs: some milliseconds a token, some megabytes an output."""
    return LLParserLimits(
        step_lexer_fuel=200_000, step_max_items=50_000, max_lexer_states=20_000, verbose_errors=False
    )
