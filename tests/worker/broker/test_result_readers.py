"""A worker is told of senders that look for results elsewhere."""

import pytest
from structlog.testing import capture_logs

from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.result_readers import ResultReaders

ELSEWHERE = "redis://results:6379/1"


@pytest.mark.parametrize(
    ("own", "place", "is_told"),
    [
        ("", "broker", False),
        ("", ELSEWHERE, True),
        ("", "rpc://", True),
        ("", "redis://[", True),
        ("", None, False),
        ("", 7, False),
        (ELSEWHERE, ELSEWHERE, False),
        (ELSEWHERE, "rediss://another-name:6380/1", False),
        (ELSEWHERE, "redis://results:6379/2", True),
        (ELSEWHERE, "broker", True),
    ],
)
def test_another_place_is_told_once(own: str, place: object, is_told: bool) -> None:
    readers = ResultReaders(Settings(redis_url="redis://broker:6379/0", result_url=own))
    with capture_logs() as lines:
        for _ in range(3):
            readers.look({"herd_results_at": place})
    assert [line["result_backend"] for line in lines] == [place] * is_told


def test_of_senders_that_want_no_result_and_of_very_many_nothing_is_said() -> None:
    readers = ResultReaders(Settings())
    with capture_logs() as lines:
        readers.look({"herd_results_at": ELSEWHERE, "ignore_result": True})
        for number in range(100):
            readers.look({"herd_results_at": f"redis://h/{number + 1}"})
    assert len(lines) == 20
