"""Faults between workers and Redis: connections that break, stall, crawl and lose replies."""

from collections.abc import Iterator

import pytest

from llama_herd.tasks.events import Started
from llama_herd.worker.embedded_redis import EmbeddedRedis
from tests.chaos.herd import SAMPLED, Herd
from tests.chaos.proxy import FaultProxy
from tests.worker.processes import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


@pytest.fixture
def proxy(server: EmbeddedRedis) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as proxy:
        yield proxy


def assert_undisturbed(herd: Herd) -> None:
    for result in herd.results():
        assert result.ids == herd.uninterrupted(f"tale of {result.job}", SAMPLED)
    herd.check()


def test_reset_connections_disturb_no_job(herd: Herd, proxy: FaultProxy) -> None:
    workers = herd.workers(2, url=proxy.url)
    job_ids = herd.submit(6)
    for _ in range(5):
        herd.wait_for_progress(job_ids[:2], 10)
        proxy.reset()
    assert_undisturbed(herd)
    assert [worker.process.poll() for worker in workers] == [None, None]


def test_lost_replies_write_nothing_twice(herd: Herd, proxy: FaultProxy) -> None:
    (worker,) = herd.workers(1, url=proxy.url)
    job_ids = herd.submit(6)
    for _ in range(5):
        herd.wait_for_progress(job_ids[:2], 5)
        proxy.num_cuts = 4
        wait_until(lambda: proxy.num_cuts == 0, "replies cut off")
    assert_undisturbed(herd)
    assert worker.process.poll() is None


@pytest.mark.parametrize("fault", ["slow", "byte by byte"])
def test_a_bad_line_costs_time_only(herd: Herd, proxy: FaultProxy, fault: str) -> None:
    herd.workers(1, url=proxy.url)
    proxy.delay_s, proxy.is_bytewise = (0.1, False) if fault == "slow" else (0.0, True)
    herd.submit(4)
    assert_undisturbed(herd)
    assert {result.attempts for result in herd.results()} == {1}


def test_a_worker_in_a_black_hole_loses_its_jobs_cleanly_and_consumes_again(
    herd: Herd, proxy: FaultProxy
) -> None:
    away = herd.workers(1, url=proxy.url, step_s=0.05)[0]  # slow, lest it be done before the fault
    job_ids = herd.submit(4)
    herd.wait_for_tokens(job_ids, 20)
    rescuer = herd.workers(1)[0]
    proxy.hold()
    herd.wait_for_epoch(job_ids, 2)
    proxy.release()
    assert_undisturbed(herd)
    assert {result.worker for result in herd.results()} == {rescuer.name}
    rescuer.stop()
    (again,) = herd.submit(1)
    herd.results([again])
    assert [event.worker for event in herd.events(again) if isinstance(event, Started)] == [away.name]
    herd.check()
