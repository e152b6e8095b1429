"""Workers that stand in front of one server: a suspect of one has nothing of the others beside it there."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.tasks.ledger.shared_servers import SharedServers
from llama_herd.worker.jobs import server_room, suspect_gate
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.server_room import ServerRoom, server_id
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from tests.worker.jobs.test_suspect_gate import bring, job

pytestmark = pytest.mark.redis

KEY = "herd:default:server:1"
LEASE_MS = 60_000


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was refused may ask again at once."""
    monkeypatch.setattr(server_room, "ASK_AGAIN_S", 0.0)


def gate(redis: Any, owner: str, life_ms: int = LEASE_MS, **settings: Any) -> SuspectGate:
    return SuspectGate(room=ServerRoom(redis, owner, SharedServers(), "1", life_ms), **settings)


def two(redis: Any, **settings: Any) -> tuple[SuspectGate, SuspectGate]:
    return gate(redis, "one", **settings), gate(redis, "other", **settings)


def end(gate: SuspectGate, attempt: Attempt) -> None:
    attempt.is_over = True
    gate.keep_room()


def test_ordinary_jobs_of_several_workers_are_there_together(redis: Any) -> None:
    one, other = two(redis)
    assert all(each.enter(job()) for each in (one, other, one, other))


def test_a_suspect_waits_until_the_other_worker_has_nothing_there(redis: Any) -> None:
    one, other = two(redis)
    first, second, suspect = job(), job(), job(is_last=True)
    assert other.enter(first)
    assert not one.enter(suspect)
    assert other.enter(second)  # others may pass it
    end(other, first)
    assert not one.enter(suspect)
    end(other, second)
    assert one.enter(suspect)


def test_nothing_of_another_worker_comes_to_a_suspect_until_it_is_sound(redis: Any) -> None:
    one, other = two(redis)
    suspect, theirs = job(is_last=True), job()
    assert one.enter(suspect)
    assert not other.enter(theirs)
    assert other.is_closed
    bring(suspect, 1000)
    one.keep_room()
    assert other.enter(theirs)
    assert not other.is_closed


def test_two_suspects_are_not_there_together(redis: Any) -> None:
    one, other = two(redis)
    first, second = job(is_last=True), job(is_last=True)
    assert one.enter(first)
    assert not other.enter(second)
    bring(first, 1000)
    one.keep_room()
    assert not other.enter(second)  # it has to be alone, though the first one has not
    end(one, first)
    assert other.enter(second)


def test_for_a_suspect_that_has_waited_the_other_worker_closes_and_lets_its_jobs_go(redis: Any) -> None:
    one, other = two(redis, patience_s=30.0, clearing_s=0.0)
    theirs, suspect = job(), job(is_last=True, waited_s=31.0)
    assert other.enter(theirs)
    assert not one.enter(suspect)
    assert not one.enter(suspect)
    other.keep_room()
    assert other.is_closed
    assert not other.enter(job())
    assert other.must_leave(theirs)
    end(other, theirs)
    assert one.enter(suspect)
    end(one, suspect)
    other.keep_room()
    assert not other.is_closed
    assert other.enter(job())


def test_of_two_workers_that_wait_to_be_alone_one_is_first(redis: Any) -> None:
    gates = two(redis, patience_s=0.0)
    suspects = [job(is_last=True, waited_s=1.0) for _ in gates]
    third, theirs = gate(redis, "third"), job()
    assert third.enter(theirs)
    for _ in range(3):
        assert not any(each.enter(one) for each, one in zip(gates, suspects, strict=True))
    end(third, theirs)
    entered = [each.enter(one) for each, one in zip(gates, suspects, strict=True)]
    assert sorted(entered) == [False, True]
    end(gates[entered.index(True)], suspects[entered.index(True)])
    late = entered.index(False)
    assert gates[late].enter(suspects[late])


def test_a_worker_that_is_silent_for_a_lease_counts_as_gone(redis: Any) -> None:
    dead, alive = gate(redis, "dead", life_ms=1), gate(redis, "alive")
    assert dead.enter(job(is_last=True))
    while redis.exists(KEY):
        pass
    assert alive.enter(job(is_last=True))


def test_a_silent_worker_counts_as_gone_though_others_keep_the_list(redis: Any) -> None:
    dead, alive = two(redis)
    assert dead.enter(job(is_last=True))
    redis.zadd(KEY, dict.fromkeys(redis.zrange(KEY, 0, -1), 1))
    assert alive.enter(job(is_last=True))
    assert redis.zrange(KEY, 0, -1) == [b"alone:other", b"other"]
    assert 0 < redis.pttl(KEY) <= LEASE_MS


def test_a_worker_that_stops_leaves_at_once(redis: Any) -> None:
    one, other = two(redis)
    assert one.enter(job(is_last=True))
    one.leave_room()
    assert other.enter(job(is_last=True))
    assert redis.zrange(KEY, 0, -1) == [b"alone:other", b"other"]


def test_while_redis_is_away_nobody_enters_an_empty_room(redis: Any) -> None:
    here = gate(Redis(port=1), "one")
    assert not here.enter(job())
    here.room = ServerRoom(redis, "one", SharedServers(), "1", LEASE_MS)
    assert here.enter(job())
    here.room.redis = Redis(port=1)
    assert here.enter(job())  # the others know already that something is there


def test_a_spoilt_key_holds_no_job_up_and_is_told_once(redis: Any) -> None:
    one, other = two(redis)
    redis.set(KEY, "somebody's")
    with capture_logs() as logs:
        assert one.enter(job(is_last=True))
        assert other.enter(job())
        one.keep_room()
        one.keep_room()
    assert [line["server"] for line in logs] == ["1", "1"]  # of each worker
    redis.delete(KEY)
    one.keep_room()
    assert not other.enter(job(is_last=True))


def test_who_was_refused_does_not_ask_redis_at_once(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two(redis)
    assert one.enter(job(is_last=True))
    assert not other.enter(job())
    monkeypatch.setattr(server_room, "ASK_AGAIN_S", 60.0)
    one.leave_room()
    assert not other.enter(job())
    monkeypatch.setattr(server_room, "ASK_AGAIN_S", 0.0)
    assert other.enter(job())


class Clock:
    """Seconds that go by when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.now_s = 0.0
        for module in modules:
            monkeypatch.setattr(module, "monotonic", lambda: self.now_s)


class Crowd:
    """Workers of one server, each of which does things in no order. It holds what is there to the law."""

    def __init__(self, gates: list[SuspectGate], random: Random, clock: Clock) -> None:
        self.gates, self.random, self.clock = gates, random, clock
        self.held: list[list[Attempt]] = [[] for _ in gates]
        self.there: list[list[Attempt]] = [[] for _ in gates]
        self.num_entered = self.num_suspects = 0

    def act(self, place: int) -> None:
        acts: list[Callable[[int], None]] = [self.bring_job, self.enter, self.enter, self.end, self.beat]
        self.clock.now_s += self.random.random()
        self.random.choice(acts)(place)
        self.check()

    def bring_job(self, place: int) -> None:
        if len(self.held[place]) < 5:
            self.held[place].append(job(is_last=self.random.random() < 0.3))
            self.held[place][-1].claimed_s = self.clock.now_s

    def enter(self, place: int) -> None:
        for one in [*self.held[place]]:
            if self.gates[place].enter(one):
                self.held[place].remove(one)
                self.there[place].append(one)
                self.num_entered += 1
                self.num_suspects += one.is_last

    def end(self, place: int) -> None:
        if self.there[place]:
            self.there[place].pop(self.random.randrange(len(self.there[place]))).is_over = True

    def beat(self, place: int) -> None:
        self.gates[place].keep_room()
        for one in [*self.there[place]]:
            if self.gates[place].must_leave(one):
                self.there[place].remove(one)
                one.is_over = True

    def finish(self) -> None:
        """Bring in all that still waits: nobody waits for ever."""
        for _ in range(300):
            for place, act in product(range(len(self.gates)), (self.enter, self.end, self.beat)):
                self.clock.now_s += 0.1
                act(place)
                self.check()
        assert not any(self.held)

    def check(self) -> None:
        there = [one for each in self.there for one in each]
        assert len(there) == 1 or not any(one.is_last for one in there)


@pytest.mark.parametrize("seed", range(5))
def test_law_whatever_workers_do_a_suspect_is_alone_in_their_server(
    redis: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, clock = Random(seed), Clock(monkeypatch, suspect_gate, server_room)
    gates = [gate(redis, f"worker-{n}", patience_s=3.0, clearing_s=1.0) for n in range(3)]
    crowd = Crowd(gates, random, clock)
    for _ in range(1000):
        crowd.act(random.randrange(3))
    assert crowd.num_suspects > 10
    assert crowd.num_entered - crowd.num_suspects > 10
    crowd.finish()


def test_a_server_has_one_name_by_one_address_and_a_loopback_address_one_on_each_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = ["http://gpu:80", "http://gpu", "http://gpu/", "http://GPU:80"]
    assert len({server_id(url) for url in same}) == 1
    assert len({server_id(url) for url in (same[0], "http://gpu:81", "http://gpu2:80", "https://gpu")}) == 4
    local = ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"]
    local += ["http://LOCALHOST:8000/", "http://localhost.:8000", "http://0.0.0.0:8000", "http://[::]:8000"]
    local += [
        "http://127.1:8000",
        "http://2130706433:8000",
        "http://0x7f.1:8000",
        "http://[::ffff:127.0.0.1]:8000",
    ]
    here = {server_id(url) for url in local}
    monkeypatch.setattr("socket.gethostname", lambda: "another machine")
    assert len(here) == 1
    assert here.isdisjoint({server_id(url) for url in local})
