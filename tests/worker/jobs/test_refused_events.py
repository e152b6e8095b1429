"""Events that Redis does not take: the job that brings them ends alone, and the others go on."""

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.worker.jobs.publisher_desk import Desk, LosesReplies, RefusesOneJob, last_token

pytestmark = pytest.mark.redis


@pytest.fixture
def desk(redis: Redis) -> Desk:
    return Desk(redis)


def break_at(redis: Redis, megabytes: int | None) -> None:
    """Let Redis close connections at arguments longer than this; None: as it is without a setting."""
    redis.config_set("proto-max-bulk-len", f"{megabytes or 512}mb")


@pytest.fixture(params=[1, pytest.param(8, marks=pytest.mark.long), None], ids=["1mb", "8mb", "unset"])
def bulk_mb(redis: Redis, request: pytest.FixtureRequest) -> Iterator[int | None]:
    break_at(redis, request.param)
    yield request.param
    break_at(redis, None)


def test_an_event_that_redis_cannot_take_ends_its_job_alone(desk: Desk, bulk_mb: int | None) -> None:
    """Nobody waits for it: the others' events go on in calls of their own."""
    huge, mate = desk.open("huge"), desk.open("mate")
    desk.start(huge)
    desk.say(huge, 1)
    desk.say(mate, 1)
    desk.send()
    text = "x" * (2_000_000 if bulk_mb == 1 else 9_000_000)
    desk.publisher.put(last_token(huge, 2, text))
    desk.say(mate, 2, end="stop")
    desk.send()
    assert desk.result("mate").ids == (1, 2)
    assert desk.ended == ["mate", "huge"]
    result = desk.result("huge")
    if bulk_mb is None:
        assert (result.finish_reason, result.ids) == ("stop", (1, 2))
        return
    assert (result.finish_reason, result.ids) == ("error", (1,))
    assert result.error is not None
    assert result.error.code == "not_recorded"
    assert len(result.error.message) < 300


@pytest.mark.parametrize("num_mates", [0, 1, 6, 33])
@pytest.mark.parametrize("longest", [0, 1_000])
def test_a_call_that_redis_refuses_is_halved_until_the_job_that_breaks_it_is_alone(
    redis: Redis, num_mates: int, longest: int
) -> None:
    desk = Desk(redis, RefusesOneJob(redis, "broken", longest))  # type: ignore[arg-type]
    attempts = [desk.open(f"mate-{number}") for number in range(num_mates)]
    broken = desk.open("broken")
    attempts.insert(num_mates // 2, broken)
    for attempt in attempts:
        desk.publisher.put(last_token(attempt, 1, "x" * 2_000))
    desk.send()
    assert len(desk.ended) == num_mates + bool(longest)
    for number in range(num_mates):
        assert desk.result(f"mate-{number}").ids == (1,)
    assert desk.in_hand == []
    if longest:
        error = desk.result("broken").error
        assert error is not None
        assert error.code == "not_recorded"
    else:
        assert (desk.lost, desk.events("broken")) == (["broken"], [])


def test_a_job_whose_lease_cannot_be_noted_ends_with_all_that_was_written(desk: Desk) -> None:
    """Somebody has written where the tenant's leases are."""
    attempt = desk.open("job")
    desk.redis.set(desk.ledger.key("leases"), "no index")
    desk.say(attempt, 1, end="stop")
    desk.send()
    assert (desk.lost, desk.ended, desk.in_hand) == ([], ["job"], [])
    assert (desk.result("job").ids, desk.result("job").finish_reason) == ((1,), "stop")


@pytest.mark.long
def test_a_large_event_is_repeated_while_redis_is_away(redis: Redis) -> None:
    """What breaks the connection then is not the event."""
    wire = LosesReplies(redis, num_lost=7)
    desk = Desk(redis, wire)  # type: ignore[arg-type]
    attempt = desk.open("job")
    desk.publisher.put(last_token(attempt, 1, "x" * 100_000))
    desk.send()
    assert len(desk.result("job").text) == 100_000
