"""Places are shared evenly among the tenants whose batches wait."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.feeder.batch_feeder import batch_to_give_way, order_fairly
from llama_herd.tasks.ledger.stored_files import DueItem
from tests.batch_api import BatchApi, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread


def of(tenant: str, num: int, first: int = 0) -> list[DueItem]:
    return [DueItem(tenant, f"{tenant}{number}") for number in range(first, first + num)]


def counts(batches: list[DueItem]) -> dict[str, int]:
    return {tenant: sum(one.tenant == tenant for one in batches) for tenant in "abcd"}


def test_the_tenant_that_has_the_fewest_is_next_and_of_it_the_oldest() -> None:
    assert order_fairly(of("a", 3) + of("b", 2), []) == [
        *of("a", 1),
        *of("b", 1),
        *of("a", 1, 1),
        *of("b", 1, 1),
        *of("a", 1, 2),
    ]
    assert order_fairly(of("a", 2, 2) + of("b", 2), of("a", 2)) == [*of("b", 2), *of("a", 2, 2)]
    assert order_fairly([], of("a", 2)) == []


def test_the_last_batch_of_who_has_the_most_gives_way() -> None:
    assert batch_to_give_way(of("b", 5), of("a", 8)) == DueItem("a", "a7")
    assert batch_to_give_way(of("b", 5), of("b", 1) + of("a", 3)) == DueItem("a", "a2")


def test_nobody_gives_way_for_who_would_then_have_more() -> None:
    assert batch_to_give_way(of("c", 9), of("a", 1) + of("b", 1)) is None
    assert batch_to_give_way(of("b", 9), of("a", 2) + of("b", 1)) is None
    assert batch_to_give_way(of("a", 9), of("a", 8)) is None
    assert batch_to_give_way([], of("a", 8)) is None


@given(
    st.lists(st.sampled_from("abcd"), max_size=40),
    st.lists(st.sampled_from("abcd"), max_size=8),
)
def test_in_the_end_no_tenant_that_waits_has_two_fewer_than_another(
    waiting: list[str], running: list[str]
) -> None:
    """Whoever waits and whoever runs, after so many turns as there are places nobody gives way any more."""
    left = [DueItem(tenant, f"new{number}") for number, tenant in enumerate(waiting)]
    places = [DueItem(tenant, f"old{number}") for number, tenant in enumerate(running)]
    for _ in range(8):
        taken = order_fairly(left, places)[: 8 - len(places)]
        places += taken
        left = [one for one in left if one not in taken]
        gone = batch_to_give_way(left, places) if len(places) == 8 else None
        if gone is not None:
            places.remove(gone)
            left.append(gone)
    num = counts(places)
    assert len(places) == min(8, len(waiting) + len(running))
    assert all(max(num.values()) - num[one.tenant] < 2 for one in left)


def api_of(gateway: GatewayThread) -> BatchApi:
    return BatchApi(lambda: gateway.url)


@pytest.fixture
def gateways(redis: Redis, redis_url: str, tmp_path: Path) -> Iterator[tuple[BatchApi, BatchApi, BatchApi]]:
    """Of three tenants. One of them runs all batches, two at a time."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(GatewayThread(redis_url, tenant=tenant, files=str(tmp_path), batches=batches))
            for tenant, batches in (("default", 2), ("acme", 0), ("globex", 0))
        ]
        first, second, third = map(api_of, opened)
        yield first, second, third


@pytest.mark.redis
def test_long_batches_of_a_tenant_hold_up_no_other_tenant(
    gateways: tuple[BatchApi, BatchApi, BatchApi], redis_url: str
) -> None:
    api, *others = gateways
    with StandIn(redis_url) as busy, StandIn(redis_url, tenant="acme"), StandIn(redis_url, tenant="globex"):
        busy.hold()
        long = [api.begin(rows(5)) for _ in range(5)]
        wait_until(lambda: [api.show(one)["status"] for one in long].count("in_progress") == 2, "two run")
        for other in others:
            assert other.end_of(other.begin(rows(5)))["status"] == "completed"
        busy.go_on()
        for one in long:
            assert api.end_of(one)["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
