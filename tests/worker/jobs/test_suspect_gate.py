"""Who is let in to be prepared and computed, and when."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

import pytest

from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.ledger import SOUND_MS, SOUND_TOKENS
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.suspect_gate import CLOSED_S, PATIENCE_S, SHARED_ALONE_S, SuspectGate

CLAIM = Yours(epoch=1, n=0, seq=0, deaths=0, attempts=0, due_ms=0, body="", now_ms=0)


def job(*, is_last: bool = False, waited_s: float = 0.0, num_recorded: int = 0) -> Attempt:
    claim = replace(CLAIM, n=num_recorded)
    stream = EventLog("job", claim, RecordedOutputs.from_events([]), EventAuthor("w", "m"))
    return Attempt(stream, [], is_last=is_last, claimed_s=monotonic() - waited_s)


def bring(attempt: Attempt, num_tokens: int, after_s: float = 0.0) -> None:
    """Let an attempt have started some time ago, and have recorded tokens."""
    attempt.started_s = attempt.first_token_s = monotonic() - after_s
    attempt.stream.num_ids += num_tokens


def test_ordinary_jobs_come_in_at_once() -> None:
    gate = SuspectGate()
    assert gate.enter(job())
    assert gate.enter(job())
    assert not gate.is_closed


@pytest.mark.parametrize(
    ("num_tokens", "after_s", "is_sound"),
    [(1, 0.0, False), (SOUND_TOKENS - 1, 0.0, False), (SOUND_TOKENS, 0.0, True), (1, SOUND_MS / 1000, True)],
)
@pytest.mark.parametrize("num_recorded", [0, SOUND_TOKENS])
def test_a_suspect_is_alone_until_its_attempt_is_sound(
    num_tokens: int, after_s: float, is_sound: bool, num_recorded: int
) -> None:
    """However far those before it have come: of them workers may have died."""
    gate, suspect = SuspectGate(), job(is_last=True, num_recorded=num_recorded)
    assert gate.enter(suspect)
    assert not gate.enter(job())
    bring(suspect, num_tokens, after_s)
    assert gate.enter(job()) is is_sound
    assert gate.is_closed is not is_sound


def test_one_that_is_over_can_be_taken_back() -> None:
    """Which changes nothing for a suspect that has come in since."""
    gate, over = SuspectGate(), job()
    assert gate.enter(over)
    over.is_over = True
    assert gate.enter(job(is_last=True))
    gate.leave(over)
    assert not gate.enter(job())


def test_a_suspect_waits_for_those_inside_and_others_pass_it() -> None:
    gate, suspect = SuspectGate(patience_s=120.0), job(is_last=True, waited_s=60.0)
    first, second = job(), job()
    assert gate.enter(first)
    assert not gate.enter(suspect)
    assert gate.enter(second)
    assert not gate.is_closed
    first.is_over = True
    assert not gate.enter(suspect)
    second.is_over = True
    assert gate.enter(suspect)


def test_a_suspect_that_has_waited_long_enough_is_passed_by_nobody() -> None:
    gate, suspect = SuspectGate(patience_s=30.0, clearing_s=0.0), job(is_last=True, waited_s=31.0)
    inside, late = job(), job()
    assert gate.enter(inside)
    assert not gate.must_leave(inside)
    assert not gate.enter(suspect)
    assert gate.is_closed
    assert not gate.enter(late)
    assert gate.must_leave(inside)
    assert not gate.must_leave(late)
    inside.is_over = True
    assert gate.enter(suspect)
    assert not gate.must_leave(suspect)
    assert not gate.enter(late)
    suspect.is_over = True
    assert gate.enter(late)


def test_those_inside_have_their_time_to_end_before_they_must_leave() -> None:
    gate, inside = SuspectGate(patience_s=0.0, clearing_s=60.0), job()
    assert gate.enter(inside)
    assert not gate.enter(job(is_last=True, waited_s=1.0))
    assert gate.is_closed
    assert not gate.must_leave(inside)


def test_after_a_suspect_the_others_have_as_long_as_they_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = monotonic()
    monkeypatch.setattr("llama_herd.worker.jobs.suspect_gate.monotonic", lambda: now_s)
    gate = SuspectGate(patience_s=0.0, closed_s=0.0, clearing_s=0.0)
    first, second = (job(is_last=True, waited_s=60.0) for _ in range(2))
    mate = job()
    assert gate.enter(mate)
    assert not gate.enter(first)
    mate.is_over = True
    assert gate.enter(first)
    now_s += 10.0
    first.is_over = True
    assert gate.enter(job())
    assert not gate.enter(second)
    now_s += 9.0
    assert not gate.enter(second)
    assert not gate.is_closed
    assert gate.enter(job())
    now_s += 1.0
    assert not gate.enter(second)
    assert gate.is_closed


def test_suspects_that_have_waited_have_their_turns_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of them would wait half a minute more, and the mates of a job that kills are many."""
    now_s = monotonic()
    monkeypatch.setattr("llama_herd.worker.jobs.suspect_gate.monotonic", lambda: now_s)
    gate, mate, late = SuspectGate(clearing_s=0.0), job(), job(is_last=True)
    first, second, third = (job(is_last=True, waited_s=PATIENCE_S + 60) for _ in range(3))
    assert gate.enter(mate)
    assert not any(map(gate.enter, (first, second, third, late)))
    mate.is_over = True
    assert gate.enter(first)
    bring(first, SOUND_TOKENS)
    now_s += 1.0
    assert not gate.enter(job())
    assert gate.must_leave(first), "it is as any other now"
    first.is_over = True
    assert gate.enter(second)
    second.is_over = True
    now_s += CLOSED_S
    assert gate.enter(job()), "the others have waited long enough"
    assert not any(map(gate.enter, (third, late)))


def test_suspects_come_in_one_after_the_other() -> None:
    gate, first, second = SuspectGate(), job(is_last=True), job(is_last=True)
    assert gate.enter(first)
    assert not gate.enter(second)
    bring(first, SOUND_TOKENS)
    assert not gate.enter(second), "the first still runs"
    first.is_over = True
    assert gate.enter(second)


def test_where_tenants_share_a_worker_a_suspect_holds_the_others_up_for_half_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = monotonic()
    monkeypatch.setattr("llama_herd.worker.jobs.suspect_gate.monotonic", lambda: now_s)
    gate, suspect, runs = SuspectGate.shared(), job(is_last=True, waited_s=PATIENCE_S + 60), job()
    assert gate.enter(runs)
    assert not gate.enter(suspect)
    now_s += 0.1
    assert gate.must_leave(runs)
    runs.is_over = True
    assert gate.enter(suspect)
    assert not gate.enter(job())
    now_s += SHARED_ALONE_S + 0.1
    assert not gate.is_closed
    assert gate.enter(job())
    assert not gate.must_leave(suspect)


def test_who_could_not_begin_after_all_holds_nobody_up() -> None:
    gate, suspect = SuspectGate(), job(is_last=True)
    assert gate.enter(suspect)
    gate.leave(suspect)
    assert gate.enter(job())


def test_a_suspect_that_is_lost_while_it_waits_holds_nobody_up() -> None:
    gate, suspect = SuspectGate(patience_s=0.0), job(is_last=True, waited_s=1.0)
    assert gate.enter(job())
    assert not gate.enter(suspect)
    assert gate.is_closed
    suspect.is_over = True
    assert gate.enter(job())


@pytest.mark.usefixtures("restless")
def test_one_suspect_at_a_time_is_inside_whichever_threads_ask() -> None:
    gate, suspects = SuspectGate(), [job(is_last=True) for _ in range(200)]
    with ThreadPoolExecutor(8) as tenants:
        assert sum(tenants.map(gate.enter, suspects)) == 1
