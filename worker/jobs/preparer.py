"""Makes sequences of claimed jobs, once they may come in; a death meanwhile counts against them."""

from collections.abc import Sequence as Rows
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import NamedTuple

import structlog
from redis.exceptions import RedisError

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.tasks.events import Failure
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger.answers import Claimed
from llama_herd.tasks.ledger.redis_call import run
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

#: Most jobs that are begun by themselves between two looks at what else has come.
MAX_ALONE = 16


class Opened(NamedTuple):
    """A claimed job with its stream; what its sequences are is yet to be found out."""

    attempt: Attempt
    message: TaskMessage
    claimed: Claimed
    recorded: Recorded


class Preparer:
    """Holds claimed jobs until the gate lets them in, and brings them into the engine. One thread calls."""

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
        self._held: list[Opened] = []
        self._is_stopping = False

    @property
    def is_holding(self) -> bool:
        """Whether a job waits to be let in."""
        return bool(self._held)

    def hold(self, opened: Opened) -> None:
        """Take a job; the next `let_in` begins it if it may come in."""
        self._held.append(opened)

    def stop(self) -> None:
        """Begin nothing more, not even the rest of a lot; any thread may call."""
        self._is_stopping = True

    def let_in(self) -> bool:
        """Begin some that may begin: jobs that have killed nobody together, each of the others by itself.

        Returns whether more may begin at once.
        """
        held = [one for one in self._held if not one.attempt.is_over and not self._has_ended(one.attempt)]
        harmless = [one for one in held if not one.claimed.attempts and self._gate.enter(one.attempt)]
        others = [one for one in held if one.claimed.attempts]
        others.sort(key=lambda one: one.attempt.is_last)  # whom nobody suspects goes first
        alone = list(islice((one for one in others if self._gate.enter(one.attempt)), MAX_ALONE))
        entered = {id(one) for one in (*harmless, *alone)}
        self._held = [one for one in held if id(one) not in entered]
        for lot in (harmless, *([one] for one in alone)):
            if lot:
                self._begin_lot(lot)
        return len(alone) == MAX_ALONE

    def _has_ended(self, attempt: Attempt) -> bool:
        """End a job that is cancelled or overdue before it has begun."""
        reason = attempt.end_before_start
        if reason in ("cancelled", "deadline"):
            self._publisher.put([Refusal(attempt, reason)])
        return reason is not None

    def _begin_lot(self, lot: list[Opened]) -> None:
        """Begin jobs, between two notes in the ledger."""
        redis, prepare, owner_id = self._holder.redis, self._holder.ledger.prepare, self._holder.id
        claims = [(one.attempt.job_id, one.claimed.epoch) for one in lot]
        try:
            are_ours = run(redis, prepare(owner_id, claims))
        except RedisError:
            self._hold_again(lot)
            return
        for one, is_ours in zip(lot, are_ours, strict=True):
            if not is_ours:
                self._publisher.put([Lost(one.attempt)])
            elif self._is_stopping:
                self._hold_again([one])
            else:
                self._begin(one)
        with suppress(RedisError):  # then a death that comes before they start counts against them, too
            run(redis, prepare(owner_id, claims, is_done=True))

    def _hold_again(self, lot: list[Opened]) -> None:
        for one in lot:
            self._gate.leave(one.attempt)
        self._held += lot

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
            log.exception("job cannot be prepared", job_id=attempt.job_id)
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
            sequence.is_held = True  # until it is on record that the job starts
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
