"""`herd acl` writes users that a Redis takes, and shows no password."""

from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.place_watch import Queued
from tests.cli.herd_command import invoke
from tests.full_disk import room_for
from tests.guarded_redis import GuardedRedis, newest_dialect

pytestmark = pytest.mark.redis

#: For the redis-server at hand.
HERE = ("--redis", newest_dialect())


def test_it_makes_a_user_for_each_role_and_shows_no_password(tmp_path: Path) -> None:
    shown = invoke("acl", str(tmp_path), *HERE, "--tenant", "acme", "--model", "m")
    assert shown.exit_code == 0
    passwords = list(tmp_path.glob("*.password"))
    assert {path.stem for path in passwords} == {
        "acme-producer",
        "acme-subscriber",
        "acme-worker",
        "acme-operator",
        "acme-gateway",
        "gatekeeper",
    }
    assert [path for path in passwords if path.read_text() in shown.output] == []
    with GuardedRedis(tmp_path) as server:
        for path in passwords:
            assert Redis.from_url(server.url_of(path.stem)).ping()


def test_a_second_run_that_takes_queues_away_warns_of_them(tmp_path: Path) -> None:
    first = invoke("acl", str(tmp_path), *HERE, "--tenant", "acme", "--model", "tales")
    assert "no longer" not in first.output
    both = invoke("acl", str(tmp_path), *HERE, "--tenant", "acme", "--model", "tales", "--model", "smol")
    assert "no longer" not in both.output
    less = invoke("acl", str(tmp_path), *HERE, "--tenant", "acme", "--model", "smol")
    assert less.exit_code == 0
    lines = [line for line in less.output.splitlines() if line.startswith("warning: acme-worker reaches")]
    assert len(lines) == 1
    assert "reaches herd.acme:tales no longer" in lines[0]
    assert "Fix: name all models of its tenant" in less.output


def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "users.acl").mkdir()
    shown = invoke("acl", str(tmp_path), *HERE, "--model", "m")
    assert shown.exit_code == 2
    assert shown.output == f"herd: {tmp_path / 'users.acl'} cannot be used: Is a directory\n"


@pytest.mark.parametrize("name", ["users.acl", "default-worker.password"])
def test_a_file_that_is_no_text_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("hunter2", "utf-16")
    shown = invoke("acl", str(tmp_path), *HERE, "--model", "m")
    assert shown.exit_code == 2
    assert shown.output.startswith(f"herd: {tmp_path / name} is not UTF-8 text. Fix: ")


def test_a_full_disk_is_told_with_the_folder(tmp_path: Path) -> None:
    with room_for(0):
        refused = invoke("acl", str(tmp_path))
    assert (refused.exit_code, refused.stderr) == (2, f"herd: {tmp_path} cannot be used: File too large\n")


@pytest.mark.long
def test_a_user_with_two_roles_joins_the_others(tmp_path: Path) -> None:
    invoke("acl", str(tmp_path), *HERE, "--model", "m")
    invoke("acl", str(tmp_path), *HERE, "--model", "m", "--user", "api=producer+subscriber")
    with GuardedRedis(tmp_path) as server:
        users = set(Redis.from_url(server.url).acl_users())
        assert {"api", "default-worker", "default"} <= users
        as_operator, as_api = (
            invoke("status", HERD_REDIS_URL=server.url_of(user), HERD_MODEL_NAME="m")
            for user in ("default-operator", "api")
        )
    assert as_operator.exit_code == 0
    assert "does not let this user do that (NOPERM)" in as_api.output


@pytest.mark.long
def test_a_user_with_two_roles_generates_though_it_may_not_look_at_queues(tmp_path: Path) -> None:
    invoke("acl", str(tmp_path), *HERE, "--model", "tales", "--user", "api=producer+subscriber")
    with GuardedRedis(tmp_path) as server, StandIn(server.url), Client(server.url) as root:
        job_id = root.submit(prompt="loads the scripts, as a worker does")
        for command in (("generate", "Once"), ("watch", job_id)):
            done = invoke(*command, HERD_REDIS_URL=server.url_of("api"))
            assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.long
def test_where_no_worker_has_loaded_the_script_for_it_a_watcher_learns_no_place_and_goes_on(
    tmp_path: Path,
) -> None:
    invoke("acl", str(tmp_path), *HERE, "--model", "tales", "--user", "api=producer+subscriber")
    with GuardedRedis(tmp_path) as server, Client(server.url) as root:
        job_id = root.submit(prompt="waits")
        assert places_until_timeout(server.url_of("api"), job_id) == []
        root.place(job_id)  # loads it
        with Client(server.url_of("api")) as client:
            place = next(client.watch(job_id, timeout_s=60))
        assert isinstance(place, Queued)
        assert place.position == 1


def places_until_timeout(url: str, job_id: str) -> list[int]:
    """The places that a watcher is told before it gives up."""
    told: list[int] = []
    with Client(url) as client, suppress(TimeoutError):
        for event in client.watch(job_id, timeout_s=0.3):
            assert isinstance(event, Queued)
            told.append(event.position)
    return told


@pytest.mark.long
def test_a_user_may_have_a_role_in_several_tenants(tmp_path: Path) -> None:
    tenants = ("--tenant", "acme", "--tenant", "globex")
    assert invoke("acl", str(tmp_path), *HERE, *tenants, "--model", "m").exit_code == 0
    assert (
        invoke("acl", str(tmp_path), *HERE, *tenants, "--model", "m", "--user", "gpu=operator").exit_code == 0
    )
    with GuardedRedis(tmp_path) as server:
        assert {"acme-worker", "globex-worker", "gpu"} <= set(Redis.from_url(server.url).acl_users())
        can_see = {
            (user, tenant): invoke(
                "status", HERD_REDIS_URL=server.url_of(user), HERD_MODEL_NAME="m", HERD_TENANT=tenant
            ).exit_code
            == 0
            for user in ("gpu", "acme-operator")
            for tenant in ("acme", "globex")
        }
    assert [pair for pair, can in can_see.items() if not can] == [("acme-operator", "globex")]


def test_a_tenants_name_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    refused = invoke("acl", str(tmp_path), *HERE, "--tenant", "acme", "--tenant", "a b")
    assert refused.exit_code == 2
    assert refused.output.count("\n") == 1
    assert "'a b'" in refused.output


@pytest.mark.parametrize("user", ["api", "api=root", "a b=producer"])
def test_a_role_that_is_none_is_refused_in_one_line(tmp_path: Path, user: str) -> None:
    refused = invoke("acl", str(tmp_path), *HERE, "--user", user)
    assert refused.exit_code == 2
    assert refused.output.count("\n") == 1
    assert not (tmp_path / "users.acl").exists()


@pytest.mark.parametrize(
    "command",
    ["purge --all-ended", "webhooks show", "webhooks set https://example.com/hook", "webhooks remove"],
)
def test_what_no_role_may_do_is_said_of_none(tmp_path: Path, command: str) -> None:
    assert invoke("acl", str(tmp_path), *HERE, "--model", "m").exit_code == 0
    with GuardedRedis(tmp_path) as server:
        done = invoke(*command.split(), HERD_REDIS_URL=server.url_of("default-operator"))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "does not let this user do that (NOPERM)" in done.stderr
    assert done.stderr.count("Fix:") == done.stderr.count("Fix: come as a Redis user of your own") == 1


def test_the_file_is_for_redis_7_unless_asked_otherwise(tmp_path: Path) -> None:
    for folder, option in (("new", ()), ("old", ("--redis", "6"))):
        assert invoke("acl", str(tmp_path / folder), "--model", "m", *option).exit_code == 0
    new, old = ((tmp_path / folder / "users.acl").read_text() for folder in ("new", "old"))
    assert "(" in new
    assert "(" not in old


@pytest.mark.parametrize(
    "model", ["*", "", "a b", "x ~* +@all", "m\nuser b on nopass", "m?", "[a-z]", "acme:m"]
)
def test_a_model_that_could_write_rules_is_refused_in_one_line(tmp_path: Path, model: str) -> None:
    """In tenant `default` a model with a colon would be another tenant's."""
    refused = invoke("acl", str(tmp_path), "--model", model)
    assert refused.exit_code == 2
    assert refused.output.count("\n") == 1
    assert f"model {model!r}" in refused.output
    assert not (tmp_path / "users.acl").exists()


def test_whoever_comes_without_a_name_stays_out(tmp_path: Path) -> None:
    refused = invoke("acl", str(tmp_path), "--model", "m", "--user", "default=worker")
    assert refused.exit_code == 2
    assert refused.output.count("\n") == 1
    assert "without a name and a password" in refused.output
    assert not (tmp_path / "users.acl").exists()
