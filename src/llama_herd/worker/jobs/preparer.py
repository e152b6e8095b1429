"""Makes sequences of claimed jobs that the gate lets in. A worker's death meanwhile counts against them."""

from bisect import insort
from collections import deque
from collections.abc import Sequence as Rows
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic

import structlog
from redis.exceptions import RedisError, ResponseError

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.tasks.ledger.answers import Claimed
from llama_herd.tasks.ledger.held_jobs import prepare
from llama_herd.tasks.ledger.redis_call import run_calls
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.structured_outputs import FORM_FIELDS
from llama_herd.worker.engine.interface import Abort, JobEngine
from llama_herd.worker.engine.sequence import Handling, Sequence
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.publisher import LeftJob, Publisher, RefusedJob
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.retries import Retries
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.tenancy import Tenancies
from llama_herd.worker.loading.sequence_maker import SequenceMaker

log = structlog.get_logger(__name__)

#: Most jobs that are noted at a time. If one of them kills the worker, it counts against all of them.
MAX_LOT = 16

#: An urgent job goes first as if it was claimed this much earlier, one that can wait as if claimed this much
#: later. So no job is passed for ever.
HEAD_START_S = 10.0

#: A job that takes so long to make ready lets the jobs of other groups go before the next ones of its own.
LONG_S = 0.1

#: As they stand in a body: in a text, quotes would have a backslash. A form may take a second to be judged.
_FORM_KEYS = tuple(f'"{name}"' for name in (*FORM_FIELDS, "tools"))


@dataclass(eq=False)
class OpenedJob:
    """A claimed job with its stream, which has no sequences yet."""

    attempt: Attempt
    claimed: Claimed
    recorded: RecordedOutputs

    @property
    def turn(self) -> tuple[bool, float]:
        """The job with the smallest one begins first; suspects come last."""
        head_start_s = HEAD_START_S * self.attempt.urgency
        return self.attempt.is_last, self.attempt.claimed_s - head_start_s

    @cached_property
    def group(self) -> tuple[str, bool]:
        """Those of a tenant that ask for a form, and those that ask for none."""
        return self.attempt.tenant, any(key in self.claimed.body for key in _FORM_KEYS)


@dataclass(eq=False)
class Preparer:
    """Holds claimed jobs until the gate lets them in, and submits them to the engine. One thread calls it.

    It begins one job at a time, and first notes in the ledger which. Harmless jobs, of which no worker has
    died yet, are noted in lots, any other by itself. A lot is over when all of its jobs have begun, or when
    a more urgent job arrives.
    """

    tenancies: Tenancies
    maker: SequenceMaker
    publisher: Publisher
    gate: SuspectGate
    engine: JobEngine
    _held: list[OpenedJob] = field(init=False, default_factory=list)  # in the order of their turns
    _noted: list[OpenedJob] = field(init=False, default_factory=list)
    _lot: deque[OpenedJob] = field(init=False, default_factory=deque)  # noted jobs that have not begun
    #: By group: claimed before then, the jobs of others go first.
    _yields_until_s: dict[tuple[str, bool], float] = field(init=False, default_factory=dict)

    @property
    def is_holding(self) -> bool:
        """Whether a job waits to be let in."""
        return bool(self._held)

    def hold(self, opened: OpenedJob) -> None:
        """Take a job; `begin_one` begins it when its turn comes and the gate lets it in."""
        insort(self._held, opened, key=self._turn)

    def begin_one(self) -> bool:
        """Begin the next job. False if none may begin now."""
        if self._lot and self._held and self._turn(self._held[0]) < self._turn(self._lot[0]):
            self._hold_again()
        if not self._lot and not self._open_lot():
            return False
        if self._lot:
            opened = self._lot.popleft()
            if not self._end_if_due(opened.attempt):
                began_s = monotonic()
                self._begin(opened)
                self._let_others_go_first(opened, began_s)
        return True

    def _turn(self, opened: OpenedJob) -> tuple[bool, float, float]:
        """As the job's own, but behind what its group owes the others."""
        is_last, turn_s = opened.turn
        yields_s = self._yields_until_s.get(opened.group, turn_s)
        return is_last, max(turn_s, yields_s), turn_s

    def _let_others_go_first(self, opened: OpenedJob, began_s: float) -> None:
        """Let a group whose job took long give as much time to the others, who had to wait for it.

        Else a few dozen forms that take a second each would hold up everybody, one after the other.
        """
        now_s, (_, has_form) = monotonic(), opened.group
        if (has_form or len(self.tenancies.queues) > 1) and now_s - began_s > LONG_S:
            self._yields_until_s[opened.group] = now_s + (now_s - began_s)
            self._hold_again()
            self._held.sort(key=self._turn)

    def stop(self) -> None:
        """Take all notes back."""
        self._hold_again()
        with suppress(RedisError):
            self._note(done=self._noted)

    def _hold_again(self) -> None:
        """Hold the jobs of the lot again that have not begun."""
        for opened in self._lot:
            self.gate.leave(opened.attempt)
            self.hold(opened)
        self._lot.clear()

    def _open_lot(self) -> bool:
        """Note the next lot, and that the last one is done. False if no job may begin, or Redis is away."""
        done, self._noted = self._noted, self._next_lot()
        self._lot.extend(self._noted)
        try:
            are_ours = self._note(done, self._noted)
        except RedisError:
            self._hold_again()
            # The call may have run though its reply was lost: of all of them that is taken back next.
            self._noted += [one for one in done if one not in self._noted]
            return False
        for opened, is_ours in zip(self._noted, are_ours, strict=True):
            if not is_ours:
                self._lot.remove(opened)
                self.publisher.put([LeftJob(opened.attempt, Attempt.let_go)])
        return bool(self._noted)

    def _next_lot(self) -> list[OpenedJob]:
        """Let in the jobs that may begin now, in turn: several harmless ones, or one that is not.

        Suspects ask the gate each time, since it counts how long they wait.
        """
        lot: list[OpenedJob] = []
        others: list[OpenedJob] = []
        for opened in self._held:
            if self._end_if_due(opened.attempt):
                continue
            is_next = not others and (not lot or _may_join(opened, lot))
            may_ask = is_next or opened.attempt.is_last
            (lot if may_ask and self.gate.enter(opened.attempt) else others).append(opened)
        self._held = others
        return lot

    def _note(self, done: Rows[OpenedJob], begun: Rows[OpenedJob] = ()) -> list[bool]:
        """Note which jobs are prepared and which begin; return for each of the latter if it is still ours."""
        calls = [
            prepare(
                self.tenancies.owner,
                [self.tenancies.for_attempt(one.attempt).held(one.attempt) for one in lot],
                is_done=lot is done,
            )
            for lot in (done, begun)
            if lot
        ]
        answers = run_calls(self.tenancies.redis, calls) if calls else []
        are_ours = answers[-1] if begun else []
        if isinstance(are_ours, ResponseError):
            raise are_ours
        return are_ours

    def _end_if_due(self, attempt: Attempt) -> bool:
        """End a job that is cancelled or overdue before it has begun. True if it is not to begin."""
        if attempt.is_over:
            return True
        is_overdue = attempt.deadline_s is not None and monotonic() >= attempt.deadline_s
        reason = attempt.abort or ("deadline" if is_overdue else None)
        if reason in ("cancelled", "deadline"):
            self.publisher.put([RefusedJob(attempt, reason)])
        return reason is not None

    def _begin(self, opened: OpenedJob) -> None:
        """Submit a job to the engine, or end it if it cannot be run."""
        attempt = opened.attempt
        try:
            self._prepare(opened)
        except InvalidJob as error:
            # An error of the message says more than the record that was made of it, which has no job.
            message = str(attempt.deliveries[0].message.error or error)
            self._refuse(attempt, Failure(code=ErrorCode.INVALID_JOB, message=message))
        except GenerationError as error:
            self._refuse(attempt, Failure.from_error(error))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # also a panic of native code: the other jobs go on
            log.exception("job preparation failed", **attempt.line)
            message = f"{type(error).__name__} while the job was prepared"
            self._refuse(attempt, Failure(code=ErrorCode.PREPARATION_ERROR, message=message))

    def _prepare(self, opened: OpenedJob) -> None:
        """Make the job's sequences, bring each to where its stream ends, and submit them."""
        attempt, claimed, recorded = opened.attempt, opened.claimed, opened.recorded
        ids = [token_id for of_choice in recorded.ids.values() for token_id in of_choice]
        if recorded.num != claimed.n or min(ids, default=0) < 0:
            raise GenerationError(
                ErrorCode.UNREADABLE, "the job's stream is broken, so the job cannot continue"
            )
        settings = self.tenancies.for_attempt(attempt).settings
        job = parse_job(claimed.body, settings)
        attempt.retries = Retries.of(job, claimed.retries)
        if job.model not in (None, settings.served_model):
            message = f"must be {settings.served_model}, the model that this queue's workers serve"
            raise InvalidJob([FieldError("model", message)])
        gather_s = (settings.flush_ms if job.flush_ms is None else job.flush_ms) / 1000
        attempt.stream.pace.gather_s = gather_s
        handling = Handling(attempt.line, gather_s, attempt.deliveries[0].time_limit_s, awaits_start=True)
        now_ms = claimed.now_ms + round(1000 * (monotonic() - attempt.claimed_s))
        sequences = self.maker.sequences(attempt.job_id, job, now_ms, claimed.due_ms, handling)
        self._check_dimensions(recorded.dimensions)
        self._note_weights(attempt, recorded.weights_digests)
        for sequence in sequences:
            self._resume(sequence, recorded)
        attempt.take(sequences, self.maker.echoed_prompt(job, sequences[0].prompt_ids))
        self._submit(attempt, sequences)

    def _resume(self, sequence: Sequence, recorded: RecordedOutputs) -> None:
        """Bring an output to where its stream ends. Raises GenerationError if ids are not its text here."""
        if sequence.vector is not None:
            sequence.finish_reason = "stop" if sequence.choice in recorded.vectors else None
            return
        ids, text = recorded.ids.get(sequence.choice, []), recorded.texts.get(sequence.choice, "")
        end, vocab_size = recorded.ends.get(sequence.choice), self.maker.tokenizer.vocab_size
        if max(ids, default=0) >= vocab_size or sequence.replay(ids, end) != text:
            message = "the tokens so far stand for another text in this worker's model"
            raise GenerationError(ErrorCode.OTHER_VOCABULARY, message)

    def _check_dimensions(self, recorded: frozenset[int]) -> None:
        """Raise GenerationError if recorded vectors are of another width than this model's."""
        own = self.maker.texts.num_dimensions
        if others := sorted(recorded - {own}):
            message = (
                f"the vectors so far have {others[0]} dimensions, those of this worker's model have {own}"
            )
            raise GenerationError(ErrorCode.OTHER_VOCABULARY, message)

    def _note_weights(self, attempt: Attempt, recorded: frozenset[str]) -> None:
        """Log that what is recorded was made with other weights than those that it goes on with."""
        own = self.maker.weights_digest
        if own and recorded - {own}:
            log.warning("job goes on with other weights", **attempt.line, own=own, before=sorted(recorded))

    def _submit(self, attempt: Attempt, sequences: Rows[Sequence]) -> None:
        """Submit the sequences to the engine; those that have ended already go to the publisher."""
        ended = attempt.ended(sequences)
        self.engine.submit(*(sequence for sequence in sequences if sequence.finish_reason is None))
        abort: Abort | None = "dropped" if attempt.is_over else attempt.abort
        if abort:  # it came before the sequences were in the engine
            self.engine.abort(attempt.sequences, abort)
        if ended:
            self.publisher.put(ended)

    def _refuse(self, attempt: Attempt, error: Failure) -> None:
        log.info("job refused", **attempt.line, code=error.code)
        self.publisher.put([RefusedJob(attempt, "error", error)])


def _may_join(opened: OpenedJob, lot: list[OpenedJob]) -> bool:
    """Whether a job may be noted with the lot: no worker has died of either yet, and they are as urgent.

    Jobs of another urgency would stay noted for too long.
    """
    first, claimed = lot[0].claimed, opened.claimed
    return len(lot) < MAX_LOT and claimed.lane == first.lane and not (claimed.deaths or first.deaths)
