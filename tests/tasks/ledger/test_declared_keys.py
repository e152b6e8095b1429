"""Scripts declare the keys that they touch, but for those that say so: other servers ask for it."""

from typing import Any

import pytest

from llama_herd.tasks.ledger.job_reads import FIRST
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.script import UNDECLARED, Head, Script, all_scripts
from llama_herd.tasks.ledger.stored_files import StoredFiles
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.worker.broker.message_lot import take_messages
from tests.tasks.herd import QUEUE, Herd
from tests.tasks.ledger.watched_scripts import NOTES

#: Those that find names in what they read, and act on them in the same call: see docs/decisions/0020.
BUILDERS = {"sweep", "queues", "listing", "gather", "owed"}


def test_the_scripts_that_build_names_are_known() -> None:
    assert {script.name for script in all_scripts() if script.head.builds_keys} == BUILDERS


def test_a_script_that_builds_names_says_so_in_its_first_line() -> None:
    for script in all_scripts():
        assert script.source.startswith(UNDECLARED) == script.head.builds_keys


@pytest.mark.redis
def test_scripts_whose_own_tests_are_elsewhere_are_watched_too(herd: Herd) -> None:
    """The others are, wherever tests of the ledger call them."""
    herd.submit("a")
    ledger, reports = herd.ledger, Reports()
    status = BatchStatus(run_id="r", state="running", input_name="x")
    calls: list[RedisCall[Any]] = [
        *(StoredFiles(storage="s").begin_upload("f"), ledger.queue_depth(QUEUE)),
        *(
            reports.report_batch(status),
            reports.end_batch("r"),
        ),
        ledger.read_part("a", FIRST, 1000, 1000, with_scores=False),
        take_messages(QUEUE, [lists_of(QUEUE)], "notes", "times"),
    ]
    *_, taken = [run_call(herd.redis, call) for call in calls]
    assert len(taken) == 1


@pytest.mark.redis
@pytest.mark.usefixtures("undeclared")
def test_a_name_that_is_built_in_secret_is_seen(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Script, "head", Head())
    monkeypatch.setattr(Script, "plain_source", "return redis.call('EXISTS', KEYS[1], 'built')")
    assert run_call(redis, RedisCall(Script("sly"), ("given",), (), int)) == 0
    assert redis.smembers(NOTES) == {b"sly EXISTS built"}
    redis.delete(NOTES)
