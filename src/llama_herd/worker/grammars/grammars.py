"""Grammars: constraints for jobs that ask for a form of their output."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from threading import Lock
from time import monotonic

from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.model.text.helper import Helper, HelperAnswer, HelperLimits, HelperPool
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.grammars.judge import PARSER_LIMITS

#: The program of a helper that makes a grammar of a form, or says why there is none; and its limits.
JUDGE = "llama_herd.worker.grammars.judge"
JUDGE_LIMITS = HelperLimits(cpu_s=1.0, memory_bytes=256 << 20)

#: Stands before a text that is cut into tokens, so that no codec puts a space there. No token holds it
#: beside other characters.
MARK = "\x02"


def vocabulary_of(tokenizer: Tokenizer) -> LLTokenizer:
    """The pieces of all tokens, how the model cuts texts, and the ids that end a generation, or a grammar."""
    pieces = _Pieces(tokenizer)
    vocabulary = LLTokenizer(TokenizerWrapper(pieces), eos_token=pieces.ends)
    pieces.greedy = vocabulary.greedy_tokenize
    return vocabulary


class _Pieces:
    """A tokenizer as llguidance calls it, for texts that a grammar leaves no choice about."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_mark_ids = len(tokenizer.encode(MARK, add_bos=False))
        # Until there is a vocabulary, llguidance only tries whether bytes are taken.
        self.greedy: Callable[[str], list[int]] = lambda _: []
        # llguidance wants an end: one that cannot be drawn where the model has none.
        given = tokenizer.pieces if tokenizer.eos_ids else (*tokenizer.pieces, b"")
        self.ends = sorted(tokenizer.eos_ids) or [len(tokenizer.pieces)]
        self.eos_token_id = self.ends[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [number for number, piece in enumerate(given) if not piece]
        # llguidance's mark of a special token: no UTF-8 begins so.
        self.tokens = [piece or b"\xff<%d>" % number for number, piece in enumerate(given)]

    def __call__(self, text: bytes) -> list[int]:
        """The ids as the model cuts the text within an output; by longest pieces where it would change it."""
        words = text.decode(errors="replace")
        ids = self._tokenizer.encode(MARK + words, add_bos=False)[self._num_mark_ids :]
        pieces = self._tokenizer.pieces
        return ids if b"".join(pieces[one] for one in ids) == text else self.greedy(words)


#: Forms whose grammars, or refusals, are kept for the next job with the same one.
MAX_KEPT = 64


class Grammars:
    """Makes constraints over one vocabulary. Any thread may call.

    A form that no job has had before is judged in a helper under limits, then built here under limits of the
    engine's own; who asks for another form meanwhile does not wait. The vocabulary is read when the first job
    asks for a form.
    """

    def __init__(self, tokenizer: Tokenizer, num_threads: int, judges: Iterable[Helper]) -> None:
        """`num_threads` compute the masks of a step. Each of `judges` runs the program JUDGE."""
        self._tokenizer = tokenizer
        self._num_threads = num_threads
        self._judges = HelperPool(judges)
        self._lock = Lock()
        self._kept = OrderedDict[OutputForm, LLMatcher | HelperAnswer]()  # or why there is none
        self.figures = GrammarFigures()

    def constraints(self, form: OutputForm, num: int) -> list[Constraint]:
        """Constraints for the outputs of a job, each at its beginning.

        Raises InvalidJob, by the field of the form, if it is not one, and GenerationError if it takes too
        much, or one to try again if a helper gave no answer in time. No error quotes the form.
        """
        made = self._known(form) or self._built(form)
        if isinstance(made, HelperAnswer):
            with self._lock:
                self.figures = replace(self.figures, num_refused=self.figures.num_refused + 1)
            raise _error(form, made)
        vocabulary, executor = self._engine
        return [Constraint(made.deep_copy(), executor, vocabulary.vocab_size) for _ in range(num)]

    def close(self) -> None:
        """End the helpers."""
        self._judges.close()

    def _known(self, form: OutputForm) -> LLMatcher | HelperAnswer | None:
        with self._lock:
            self.figures = replace(self.figures, num_asked=self.figures.num_asked + 1)
            if form in self._kept:
                self._kept.move_to_end(form)
            return self._kept.get(form)

    def _built(self, form: OutputForm) -> LLMatcher | HelperAnswer:
        """Have a new form judged, build its grammar, and keep the outcome for further jobs."""
        started_s = monotonic()
        with self._judges.lent() as judge:
            answer = judge.ask((form.kind, form.text))
        made = self._matcher(answer.text) if answer.kind == "text" else answer
        with self._lock:
            build_s = self.figures.build_s.plus(monotonic() - started_s)
            self.figures = replace(self.figures, build_s=build_s)
            if answer.kind != "late":
                self._kept[form] = made
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return made

    def _matcher(self, grammar: str) -> LLMatcher | HelperAnswer:
        vocabulary, _ = self._engine
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=PARSER_LIMITS)
        too_large = HelperAnswer("limit", "is too large for this model's vocabulary")
        return too_large if matcher.is_error() else matcher

    @property
    def vocabulary(self) -> LLTokenizer:
        """The vocabulary of its constraints."""
        return self._engine[0]

    @cached_property
    def _engine(self) -> tuple[LLTokenizer, LLExecutor]:
        return vocabulary_of(self._tokenizer), LLExecutor(self._num_threads)


def _error(form: OutputForm, answer: HelperAnswer) -> InvalidJob | GenerationError:
    """Why there is no grammar of a form."""
    if answer.is_over_limit:
        message = f"{form.field}: the schema or grammar {answer.text}"
        return answer.error(ErrorCode.GRAMMAR_TOO_COMPLEX, message)
    if form.kind == "output":  # which has several parts: the answer names the field
        field, _, message = answer.text.partition(": ")
        return InvalidJob([FieldError(field, message)])
    return InvalidJob([FieldError(form.field, answer.text)])
