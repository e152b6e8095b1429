"""Scripts declare the keys that they touch, but for those that say so: other servers ask for it."""

from typing import Any

import pytest

from llama_herd.tasks.ledger.redis_call import UNDECLARED, Call, Script, run
from tests.tasks.ledger.watched_scripts import NOTES, scripts

#: Those that find a name in what they read: the queue of a job's record, the ids of a list. They run once a
#: job or seldom; of an event, a beat, or a look of each second there is none.
BUILDERS = {"sweep", "queues", "jobs", "listing"}


def test_the_scripts_that_build_names_are_known() -> None:
    assert {script.files[-1] for script in scripts() if script.builds_keys} == BUILDERS


def test_a_script_that_builds_names_says_so_in_its_first_line() -> None:
    for script in scripts():
        assert script.source.startswith(UNDECLARED) == script.builds_keys


@pytest.mark.redis
@pytest.mark.usefixtures("undeclared")
def test_a_name_that_is_built_in_secret_is_seen(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Script, "plain_source", "return redis.call('EXISTS', KEYS[1], 'built')")
    assert run(redis, Call(Script("sly"), ("given",), (), int)) == 0
    assert redis.smembers(NOTES) == {b"sly EXISTS built"}
    redis.delete(NOTES)
