"""Makes sequences of claimed jobs, once they may come in; a death meanwhile counts against them."""

from bisect import insort
from collections import deque
from collections.abc import Sequence as Rows
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

import structlog
from redis.exceptions import RedisError, ResponseError

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.tasks.events import Failure
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.answers import Claimed
from llama_herd.tasks.ledger.redis_call import run_many
from llama_herd.tasks.priority import urgency_of
from llama_herd.worker.broker.task_message import TaskMessage
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.sequence_info import Abort
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import Recorded
from llama_herd.worker.jobs.lease_holder import LeaseHolder
from llama_herd.worker.jobs.publisher import Lost, Publisher, Refusal
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: Most jobs that are noted at a time: so many are counted if one of them kills.
MAX_LOT = 16

#: So much earlier than it was claimed an urgent job counts as claimed, and one that can wait so much later.
#: So nobody is passed for ever.
HEAD_START_S = 10.0


class Opened(NamedTuple):
    """A claimed job with its stream; what its sequences are is yet to be found out."""

    attempt: Attempt
    message: TaskMessage
    claimed: Claimed
    recorded: Recorded

    @property
    def turn(self) -> tuple[bool, float]:
        """Whose is less begins first; last is whom the gate lets in alone."""
        head_start_s = HEAD_START_S * urgency_of(self.claimed.lane)
        return self.attempt.is_last, self.attempt.claimed_s - head_start_s

    @property
    def is_harmless(self) -> bool:
        """Whether it has killed nobody yet."""
        return not self.claimed.attempts


class Preparer:
    """Holds claimed jobs until the gate lets them in, and brings them into the engine. One thread calls.

    It begins one at a time. Those that have killed nobody are noted in lots, any other by itself. A lot is
    over when all of it have begun, or when somebody comes who goes before the rest.
    """

    def __init__(
        self,
        holder: LeaseHolder,
        settings: WorkerSettings,
        model: LoadedModel,
        *,
        publisher: Publisher,
        gate: SuspectGate,
        engine: EngineThread,
    ) -> None:
        self._holder = holder
        self._settings = settings
        self._model = model
        self._publisher = publisher
        self._gate = gate
        self._engine = engine
        self._held: list[Opened] = []  # as it is their turn
        self._noted: list[Opened] = []
        self._lot = deque[Opened]()  # those of the noted that have not begun

    @property
    def is_holding(self) -> bool:
        """Whether a job waits to be let in."""
        return bool(self._held)

    def hold(self, opened: Opened) -> None:
        """Take a job; `begin_one` begins it when it is its turn and it may come in."""
        insort(self._held, opened, key=lambda one: one.turn)

    def begin_one(self) -> bool:
        """Begin the job whose turn it is. False if none may begin now."""
        if self._lot and self._held and self._held[0].turn < self._lot[0].turn:
            self._hold_again()
        if not self._lot and not self._open_lot():
            return False
        if self._lot:
            opened = self._lot.popleft()
            if not self._has_ended(opened.attempt):
                self._begin(opened)
        return True

    def stop(self) -> None:
        """Leave nothing noted."""
        self._hold_again()
        with suppress(RedisError):
            self._note(done=self._noted)

    def _hold_again(self) -> None:
        """Let those of the lot wait again that have not begun."""
        for opened in self._lot:
            self._gate.leave(opened.attempt)
            self.hold(opened)
        self._lot.clear()

    def _open_lot(self) -> bool:
        """Note who begins next, and that the lot before is done. False if nobody may, or Redis is away."""
        done, self._noted = self._noted, self._next_lot()
        self._lot.extend(self._noted)
        try:
            are_ours = self._note(done, self._noted)
        except RedisError:
            self._hold_again()
            self._noted = done
            return False
        for opened, is_ours in zip(self._noted, are_ours, strict=True):
            if not is_ours:
                self._lot.remove(opened)
                self._publisher.put([Lost(opened.attempt)])
        return bool(self._noted)

    def _next_lot(self) -> list[Opened]:
        """Let in who may begin now, in turn: some that are harmless, or one that is not.

        All that must be alone ask the gate each time, since it counts for how long they do.
        """
        lot: list[Opened] = []
        others: list[Opened] = []
        for opened in self._held:
            if self._has_ended(opened.attempt):
                continue
            is_next = not others and (not lot or _may_join(opened, lot))
            may_ask = is_next or opened.attempt.is_last
            (lot if may_ask and self._gate.enter(opened.attempt) else others).append(opened)
        self._held = others
        return lot

    def _note(self, done: Rows[Opened], begun: Rows[Opened] = ()) -> list[bool]:
        """Note what is prepared no more, and what from now on; whether each of that is still ours."""
        calls = [
            self._holder.ledger.prepare(
                self._holder.id, [(one.attempt.job_id, one.claimed.epoch) for one in lot], is_done=lot is done
            )
            for lot in (done, begun)
            if lot
        ]
        answers = run_many(self._holder.redis, calls) if calls else []
        are_ours = answers[-1] if begun else []
        if isinstance(are_ours, ResponseError):
            raise are_ours
        return are_ours

    def _has_ended(self, attempt: Attempt) -> bool:
        """Whether a job is over before it has begun; one that is cancelled or overdue is ended."""
        if attempt.is_over:
            return True
        reason = attempt.end_before_start
        if reason in ("cancelled", "deadline"):
            self._publisher.put([Refusal(attempt, reason)])
        return reason is not None

    def _begin(self, opened: Opened) -> None:
        """Run a job, or end it at once when it cannot be run."""
        attempt = opened.attempt
        try:
            self._prepare(opened)
        except InvalidJob as error:
            # What was wrong with the message says more than that the record it has made holds no job.
            self._refuse(
                attempt, Failure(code=ErrorCode.INVALID_JOB, message=str(opened.message.error or error))
            )
        except GenerationError as error:
            self._refuse(attempt, Failure(code=error.code, message=error.message, retriable=error.retriable))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # also a panic of native code: whatever it is, the others go on
            log.exception("job preparation failed", job_id=attempt.job_id)
            message = f"{type(error).__name__} while the job was made ready"
            self._refuse(attempt, Failure(code=ErrorCode.PREPARATION_ERROR, message=message))

    def _prepare(self, opened: Opened) -> None:
        attempt, _, claimed, recorded = opened
        ids = [token_id for of_choice in recorded.ids.values() for token_id in of_choice]
        if len(ids) != claimed.n or min(ids, default=0) < 0:
            raise GenerationError(
                ErrorCode.UNREADABLE, "the job's stream is broken, so it cannot be gone on with"
            )
        job = GenerationJob.parse(claimed.body, self._settings)
        if job.model not in (None, self._settings.served_model):
            message = f"this queue's worker serves {self._settings.served_model}, not the model asked for"
            raise InvalidJob([FieldError("model", message)])
        since_ms = round(1000 * (monotonic() - attempt.claimed_s))
        sequences = self._model.sequences(attempt.job_id, job, claimed.now_ms + since_ms)
        for sequence in sequences:
            sequence.time_limit_s = attempt.deliveries[0].time_limit_s
            sequence.replay(recorded.ids.get(sequence.choice, ()))
            sequence.is_confirmed = False  # until the job's start is on record
        attempt.stream.flush_s = job.flush_ms / 1000
        attempt.stream.num_choices = len(sequences)
        attempt.sequences = [sequence.info for sequence in sequences]
        self._submit(attempt, sequences)

    def _submit(self, attempt: Attempt, sequences: Rows[Sequence]) -> None:
        """Hand the sequences on; those that were at their end before go to the publisher."""
        ended = [
            StepOutput(one.info, finish_reason=one.finish_reason, stop_reason=one.stop_reason)
            for one in sequences
            if one.finish_reason
        ]
        for sequence in sequences:
            if sequence.finish_reason is None:
                self._engine.submit(sequence)
        abort: Abort | None = "dropped" if attempt.is_over else attempt.abort
        if abort:  # by who found none in the engine yet
            self._engine.abort(attempt.sequences, abort)
        if ended:
            self._publisher.put(ended)

    def _refuse(self, attempt: Attempt, error: Failure) -> None:
        log.info("job refused", job_id=attempt.job_id, code=error.code)
        self._publisher.put([Refusal(attempt, "error", error)])


def _may_join(opened: Opened, lot: list[Opened]) -> bool:
    """Less urgent ones may not: they would stand noted while one urgent job after the other passes them."""
    is_alike = opened.claimed.lane == lot[0].claimed.lane
    return len(lot) < MAX_LOT and is_alike and opened.is_harmless and lot[0].is_harmless
