"""Scripts declare the keys that they touch, but for those that say so: other servers ask for it."""

import re
from pathlib import Path
from typing import Any

import pytest

from llama_herd.tasks.ledger.job_reads import FIRST
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.ledger.script import UNDECLARED, Head, Script, all_scripts
from llama_herd.tasks.ledger.stored_files import StoredFiles
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.worker.broker.message_notes import MessageNotes
from tests.tasks.herd import QUEUE, Herd
from tests.tasks.ledger.watched_scripts import NOTES

DECISION = Path(__file__).parents[3] / "docs" / "decisions" / "0020-one-herd-a-redis.md"


def test_the_decision_lists_the_scripts_that_find_names_and_act_on_them_in_one_call() -> None:
    listed = re.findall(r"^  - ([A-Z_]+) ", DECISION.read_text(), re.MULTILINE)
    assert {script.name.upper() for script in all_scripts() if script.head.builds_keys} == {*listed}


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
        MessageNotes.at("notes").take(QUEUE, [lists_of(QUEUE)]),
    ]
    *_, taken = [run_call(herd.redis, call) for call in calls]
    assert len(taken.messages) == 1


@pytest.mark.redis
@pytest.mark.usefixtures("undeclared")
def test_a_name_that_is_built_in_secret_is_seen(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Script, "head", Head())
    monkeypatch.setattr(Script, "plain_source", "return redis.call('EXISTS', KEYS[1], 'built')")
    assert run_call(redis, RedisCall(Script("sly"), ("given",), (), int)) == 0
    assert redis.smembers(NOTES) == {b"sly EXISTS built"}
    redis.delete(NOTES)
