"""Which backend a worker stores results by, and which addresses it takes."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Connection, ConnectionError, Redis, TimeoutError

from llama_herd.errors import SettingsError
from llama_herd.tasks.app import make_app
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.celery_config import insist_on_results
from llama_herd.worker.broker.result_backend import ResultBackend, is_remote, settling
from llama_herd.worker.broker.result_server import RESULT_SERVER

HERE = "redis://h:6379/0"
SENTINELS = "sentinel://s1:26379,s2:26379/3?master=own"


@pytest.mark.parametrize(
    ("jobs", "results", "kind"),
    [
        (HERE, "", "ResultBackend"),
        (HERE, "redis://h", "ResultBackend"),
        (HERE, "redis://h:6379/1", "RemoteResultBackend"),
        (HERE, " redis://other:6379/0 ", "RemoteResultBackend"),
        (HERE, "unix:///r.sock?db=2", "RemoteResultBackend"),
        (HERE, SENTINELS, "RemoteSentinelResultBackend"),
        (SENTINELS, "", "SentinelResultBackend"),
        (SENTINELS, HERE, "RemoteResultBackend"),
    ],
)
def test_the_backend_is_that_of_the_results_address(jobs: str, results: str, kind: str) -> None:
    settings = Settings(redis_url=jobs, result_url=results)
    app = make_app(settings)
    insist_on_results(app, settings)
    assert type(app.backend).__name__ == kind
    assert isinstance(app.backend, ResultBackend)  # so results live as long as their jobs ask for
    assert is_remote(app.backend) == kind.startswith("Remote") == settings.keeps_results_elsewhere
    if results == SENTINELS:
        assert [one["host"] for one in app.backend.connparams["hosts"]] == ["s1", "s2"]
        assert app.conf.result_backend_transport_options["master_name"] == "own"


@pytest.mark.redis
def test_only_a_success_of_the_job_that_is_being_settled_is_stored_without_a_look(
    redis: Redis, redis_url: str
) -> None:
    settings = Settings(redis_url=redis_url)
    app = make_app(settings)
    insist_on_results(app, settings)
    for task_id in ("settled", "another"):
        app.backend.store_result(task_id, "first", "SUCCESS")
    redis.config_resetstat()
    with settling("settled", 500) as now:
        app.backend.store_result("settled", "second", "SUCCESS")
        run_call(redis, Ledger().settle("settled", *now.result))
        assert "cmdstat_get" not in redis.info("commandstats")
        app.backend.store_result("another", "second", "SUCCESS")
        app.backend.store_result("settled", ValueError("of a link"), "FAILURE")
    with settling("another", 500):  # which a worker has settled that died then
        app.backend.store_result("another", ValueError("of a link"), "FAILURE")
    stored = {task_id: app.backend.get_task_meta(task_id) for task_id in ("settled", "another")}
    assert [one["result"] for one in stored.values()] == ["second", "first"]
    assert stored["settled"].keys() == stored["another"].keys()
    assert 0 < redis.ttl(Ledger().result_key("settled")) <= 500


def test_a_remote_redis_that_does_not_answer_is_noticed_soon() -> None:
    settings = Settings(redis_url=HERE, result_url="redis://h:6379/1")
    app = make_app(settings)
    insist_on_results(app, settings)
    options = app.backend.client.connection_pool.connection_kwargs
    assert options["db"] == 1
    assert options["socket_timeout"] == options["socket_connect_timeout"] == 2.0
    tries = []

    def fail() -> None:
        tries.append("try")
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        options["retry"].call_with_retry(fail, lambda _: None)
    assert len(tries) == 2


@pytest.fixture
def results_are_there() -> Iterator[None]:
    yield
    RESULT_SERVER.is_away = False


@pytest.mark.redis
@pytest.mark.usefixtures("results_are_there")
def test_a_remote_redis_whose_connection_is_cut_once_is_not_away(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(redis_url=HERE, result_url=redis_url)
    app = make_app(settings)
    insist_on_results(app, settings)
    app.backend.store_result("before", "first", "SUCCESS")
    cuts = [ConnectionError("cut")]
    read = Connection.read_response

    def read_or_be_cut(self: Connection, *args: Any, **options: Any) -> Any:
        if cuts:
            raise cuts.pop()
        return read(self, *args, **options)

    monkeypatch.setattr(Connection, "read_response", read_or_be_cut)
    app.backend.store_result("after", "second", "SUCCESS")
    assert not cuts
    assert app.backend.get_state("after") == "SUCCESS"
    assert not RESULT_SERVER.is_away


@pytest.mark.parametrize("url", ["amqp://u:secret@h//", "db+postgresql://u:secret@h/x", "redis://h/x"])
def test_what_is_no_redis_is_refused_by_the_name_of_the_setting(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERD_RESULT_URL", url)
    with pytest.raises(SettingsError, match=r"^HERD_RESULT_URL: ") as caught:
        Settings.read()
    assert "secret" not in str(caught.value)
