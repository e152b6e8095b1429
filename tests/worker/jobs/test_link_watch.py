"""A list that links go into and nobody reads is told, whoever fills it; one that is read is not."""

import pytest
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.tasks.protocol.worker_status import LINKS_FIX, WorkerStatus
from llama_herd.worker.jobs import link_watch
from llama_herd.worker.jobs.link_watch import LOOK_S, UNREAD_S, LinkWatch, UnreadList
from llama_herd.worker.jobs.tenancy import Tenancy
from tests.worker.jobs.tenancies import alone, new_tenancy

pytestmark = pytest.mark.redis


class Watched:
    """A watch with a clock that the test moves; it looks as often as a worker's does."""

    def __init__(self, redis: Redis) -> None:
        self.now_s = 0.0
        self.tenancy: Tenancy = new_tenancy(redis)
        self.watch = LinkWatch(alone(self.tenancy), lambda: self.now_s)

    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.watch.look()
            self.now_s += LOOK_S
        self.watch.look()

    @property
    def unread(self) -> list[UnreadList]:
        return self.watch.unread(self.tenancy)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    names: dict[str | None, set[str]] = {"default": {"celery"}, None: set()}
    monkeypatch.setattr(link_watch, "sent_links", names.__getitem__)
    return names["default"]


@pytest.fixture
def watched(redis: Redis, sent: set[str]) -> Watched:
    return Watched(redis)


def test_an_unread_list_is_told_once_until_it_is_empty(watched: Watched, redis: Redis) -> None:
    with capture_logs() as lines:
        redis.lpush("celery", "a", "b")
        watched.wait(UNREAD_S - LOOK_S)
        assert not watched.unread
        watched.wait(LOOK_S)
        assert watched.unread == [UnreadList("celery", 2, UNREAD_S)]
        watched.wait(10 * UNREAD_S)
    (line,) = lines
    told = {"list": "celery", "tenant": "default", "num_messages": 2, "seconds": 30, "fix": LINKS_FIX}
    assert told.items() <= line.items()
    redis.delete("celery")
    watched.wait(LOOK_S)
    assert not watched.unread
    redis.lpush("celery", "c")
    with capture_logs() as lines:
        watched.wait(UNREAD_S + LOOK_S)
    assert len(lines) == 1


def test_a_list_from_which_messages_are_taken_is_read(watched: Watched, redis: Redis) -> None:
    for number in range(100):
        redis.lpush("celery", f"message {number}")
    with capture_logs() as lines:
        for _ in range(20):
            watched.wait(UNREAD_S / 2)
            redis.rpop("celery")
            assert not watched.unread
    assert not lines


def test_the_longest_unread_is_named_first(watched: Watched, redis: Redis, sent: set[str]) -> None:
    sent.add("shop")
    redis.lpush("shop", "a")
    watched.wait(UNREAD_S)
    redis.lpush("celery", "a")
    watched.wait(2 * UNREAD_S)
    assert [one.name for one in watched.unread] == ["shop", "celery"]


def test_what_it_may_not_look_at_is_left_out(watched: Watched, redis: Redis, sent: set[str]) -> None:
    sent.add("odd")
    redis.set("odd", "no list")
    redis.lpush("celery", "a")
    watched.wait(2 * UNREAD_S)
    assert [one.name for one in watched.unread] == ["celery"]


def test_a_report_with_an_unread_list_complains_with_the_fix() -> None:
    fields = {"name": "w", "state": "ready", "model": "m", "device": "cpu", "slots": 1}
    status = WorkerStatus.model_validate(
        {**fields, "unread_list": "shop\x1b[31m", "unread_messages": 1200, "unread_s": 61.0}
    )
    (complaint,) = status.complaints
    assert complaint == (
        'nobody has taken a message from the list "shop\\x1b[31m" for 61 s, and 1,200 wait, links of jobs '
        "among them. " + LINKS_FIX
    )
