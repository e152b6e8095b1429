"""The containers on a real engine, by the lines of the documents: `make test-compose`. Skipped where none is.

Everything is in a project and on ports of its own, and is taken away at the end; the images stay.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.result import Result
from tests.chaos.harness.patience import wait_until
from tests.cli.herd_command import invoke
from tests.compose_model import GPU, MAIN, SECURE, ComposeCommand
from tests.deploy.docker_engine import DOWN, IMAGE, Engine, started_engine
from tests.test_compose_lines import DOWNS, LINES, STARTED, UPS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

#: The most bytes of a layer of our own code.
MOST_OF_OURS = 15_000_000

LONG: dict[str, Any] = {"prompt": "Once upon a time", "sampling": {"max_tokens": 200, "ignore_eos": True}}
#: More of them than rows: a death finds some that run and some that wait. Seconds on a quiet machine.
NUM_SERVED, SERVED_S = 60, 900


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """With the image, and with users' passwords where docker-compose.secure.yml looks for them."""
    with started_engine(tmp_path_factory.mktemp("herd")) as made:
        secrets = made.folder / "secrets"
        assert invoke("acl", str(secrets), HERD_MODEL_NAME="tales").exit_code == 0
        for path in secrets.iterdir():
            path.chmod(0o444)
        yield made


@pytest.fixture
def herd(engine: Engine) -> Iterator[Engine]:
    """Redis and two workers."""
    engine.up()
    yield engine
    engine.forget()


def num_workers(command: ComposeCommand) -> int:
    """As many as are documented, or as the line says."""
    scale = re.search(r"worker=(\S+)", command.line)
    return int(scale[1].replace("$WANTED", "3")) if scale else 1 if GPU in command.files else 2


def started(command: ComposeCommand) -> list[str]:
    """The service of each container that the documents promise."""
    others = STARTED[command.files, command.profiles] - {"worker"}
    return sorted([*others, *["worker"] * num_workers(command)])


#: One of each kind: whether it is in the foreground makes no other containers.
KINDS = {(one.files, one.profiles, num_workers(one)): one for one in UPS}


@pytest.mark.parametrize("command", KINDS.values(), ids=lambda one: one.line)
def test_up_starts_what_is_said_and_down_ends_it_but_for_the_volume(
    engine: Engine, command: ComposeCommand
) -> None:
    engine.ask_for(command.services, command.files)
    try:
        engine.line(command.line)
        assert engine.services() == started(command)
        engine.line(DOWN)
        assert engine.named("container") == engine.named("network") == []
        assert f"{engine.project}_redis" in engine.named("volume")
    finally:
        engine.forget()


def test_every_other_line_of_the_documents_runs(herd: Engine) -> None:
    assert [one.line for one in DOWNS] == [DOWN]
    others = [one for one in LINES if one not in (*UPS, *DOWNS)]
    assert others
    for command in others:
        assert herd.line(command.line.replace("logs -f", "logs"))


def test_two_workers_are_healthy_and_run_jobs(herd: Engine) -> None:
    assert [herd.health(name) for name in herd.named("container")] == ["healthy"] * 3
    with Client(herd.redis_url) as client:
        results = [client.result(client.submit(prompt="Once"), timeout_s=60) for _ in range(4)]
    assert {one.finish_reason for one in results} <= {"length", "stop"}


def test_a_worker_says_first_what_it_loads_and_then_that_it_has_the_image_s_kernels(herd: Engine) -> None:
    for name in herd.workers():
        first, *others = map(json.loads, herd.docker("logs", name).splitlines())
        assert first["event"] == "loading model"
        (kernels,) = (one["kernels"] for one in others if one["event"] == "model loaded")
        assert "not built" not in kernels
        assert herd.inspect(name, "{{.HostConfig.LogConfig.Type}}") == "local"


def test_a_killed_worker_s_jobs_go_on_in_the_other(herd: Engine) -> None:
    with Client(herd.redis_url) as client:
        jobs = [client.submit(**LONG) for _ in range(NUM_SERVED)]
        begun = next(event for event in client.stream(jobs[0]) if event.type == "started")
        host = begun.worker.partition("@")[2]
        herd.docker("kill", host)  # a container's host name is the beginning of its id
        results = [client.result(job, timeout_s=SERVED_S) for job in jobs]
    assert {result.finish_reason for result in results} == {"length"}
    assert {result.attempts for result in results} == {1, 2}
    herd.up()  # a kill by hand is none by itself
    assert len(herd.workers()) == 2


def test_a_job_s_result_outlives_down(herd: Engine) -> None:
    with Client(herd.redis_url) as client:
        job = client.submit(prompt="Once", sampling={"max_tokens": 8})
        before = client.result(job, timeout_s=60)
    herd.line(DOWN)
    herd.up()
    with Client(herd.redis_url) as client:
        assert client.result(job, timeout_s=60) == before


def test_the_documented_gateway_has_workers(herd: Engine) -> None:
    key = herd.compose("run", "--rm", "keys", "create", "test")
    (key,) = re.findall(r"herd-[\w-]{20,}", key)
    herd.up("--profile", "gateway")
    url = f"http://127.0.0.1:{herd.gateway_port}"
    asked = Request(
        f"{url}/v1/completions",
        data=b'{"model": "tales", "prompt": "Once", "max_tokens": 4}',
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urlopen(asked, timeout=120) as answer:
        assert b'"text"' in answer.read()
    with urlopen(f"{url}/docs", timeout=30) as page:
        assert page.status == 200
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{url}/v1/models", timeout=30)


def test_a_second_model_has_jobs_of_its_own(herd: Engine) -> None:
    herd.up("--profile", "two-models")
    with Client(herd.redis_url) as client:
        job = client.submit(prompt="Once", model="second")
        (worker,) = {event.worker for event in client.stream(job) if event.type == "started"}
        (own,) = [name for name in herd.workers() if "-second-worker-" in name]
        assert herd.inspect(own, "{{.Config.Hostname}}") == worker.partition("@")[2]


SERVED = ("--profile", "llama-server")


@pytest.fixture
def served(engine: Engine) -> Iterator[Engine]:
    """Redis, two workers, a llama-server and the worker before it."""
    engine.ask_for({"llama-server"}, (MAIN,))
    try:
        engine.up(*SERVED)
        yield engine
    finally:
        engine.forget()


def kill_and_start(herd: Engine, container: str, client: Client) -> None:
    """Kill it by hand, and start it again by the documented command."""
    herd.docker("kill", container)
    if "-llama-server-" in container:
        wait_until(lambda: "away" in {one.state for one in client.workers()}, "its worker waits")
    herd.compose(*SERVED, "up", "--detach")


def check_whole(result: Result, events: list[Event]) -> None:
    """The answer is complete, and its stream has each event once and one end."""
    assert (result.finish_reason, len(result.ids)) == ("length", 200)
    assert [one.seq for one in events] == [*range(1, len(events) + 1)]
    assert [one.type for one in events].index("end") == len(events) - 1
    assert [token_id for one in events if one.type == "token" for token_id in one.ids] == [*result.ids]


@pytest.mark.parametrize("service", ["llama-server", "engine-worker"])
@pytest.mark.parametrize("is_by_hand", [True, False], ids=["by hand", "by itself"])
def test_streams_go_on_when_a_llama_server_or_its_worker_dies(
    served: Engine, service: str, is_by_hand: bool
) -> None:
    (container,) = [name for name in served.named("container") if f"-{service}-" in name]
    with Client(served.redis_url, model="llama-server") as client, ThreadPoolExecutor(NUM_SERVED) as pool:
        jobs = [client.submit(**LONG) for _ in range(NUM_SERVED)]
        streams = pool.map(lambda job: [*client.stream(job, timeout_s=SERVED_S)], jobs)
        next(event for event in client.stream(jobs[0]) if event.type == "token")
        if is_by_hand:
            kill_and_start(served, container, client)
        else:
            served.let_die(container)
        results = [client.result(job, timeout_s=SERVED_S) for job in jobs]
        for result, events in zip(results, streams, strict=True):
            check_whole(result, events)
    assert {result.attempts for result in results} == {1, 2}
    wait_until(lambda: served.health(container) == "healthy", f"{service} is back")


def test_a_wrong_setting_says_its_reason(engine: Engine) -> None:
    (engine.folder / ".env").write_text("HERD_SLOTS=0\n")
    try:
        said = engine.compose("up", "--wait", "--wait-timeout", "120", code=1)
        assert re.search(r"worker-\d.* (is unhealthy|exited)", said)
        shown = engine.compose("ps", "--all", "worker")
        assert re.search(r"(Restarting|Exited) \(2\)", shown)
        assert re.search(r"HERD_SLOTS.*0", engine.compose("logs", "--tail", "3", "worker"))
    finally:
        (engine.folder / ".env").unlink()
        engine.forget()


def test_users_and_passwords(engine: Engine) -> None:
    files = ("-f", MAIN, "-f", SECURE)
    try:
        engine.up(*files)
        password = (engine.folder / "secrets/default-operator.password").read_text().strip()
        with Client(f"redis://default-operator:{password}@127.0.0.1:{engine.redis_port}/0") as client:
            result = client.result(client.submit(prompt="Once"), timeout_s=60)
        assert result.finish_reason in ("length", "stop")
        engine.compose(*files, "run", "--rm", "keys", "create", "test")
    finally:
        engine.forget()


def checks(engine: Engine, container: str) -> list[dict[str, Any]]:
    """The last five checks of a container's health, as the engine keeps them."""
    kept: list[dict[str, Any]] = json.loads(engine.inspect(container, "{{json .State.Health.Log}}"))
    return kept


def test_a_full_worker_stays_healthy(herd: Engine) -> None:
    """Both have more jobs than slots while all the checks that are kept are made."""
    first = {name: checks(herd, name)[-1]["Start"] for name in herd.workers()}

    def are_all_of_now() -> bool:
        return all(checks(herd, name)[0]["Start"] > first[name] for name in first)

    with Client(herd.redis_url) as client:
        while not are_all_of_now():
            jobs = [client.submit(**LONG) for _ in range(200)]
            assert {client.result(job, timeout_s=900).finish_reason for job in jobs} == {"length"}
    assert [one["ExitCode"] for name in first for one in checks(herd, name)] == [0] * 5 * len(first)


#: Stops, and lets go on, all that runs in a container but its first process.
STOP, GO_ON = ("sh", "-c", "kill -STOP -1"), ("sh", "-c", "kill -CONT -1")


def test_a_worker_that_stands_still_is_unhealthy_within_a_minute(herd: Engine) -> None:
    stuck, other = herd.workers()
    herd.docker("exec", stuck, *STOP)
    wait_until(lambda: herd.health(stuck) == "unhealthy", "the stuck worker is unhealthy", 60)
    assert "does not answer" in checks(herd, stuck)[-1]["Output"]
    assert herd.health(other) == "healthy"
    herd.docker("exec", stuck, *GO_ON)
    wait_until(lambda: herd.health(stuck) == "healthy", "the worker that goes on is healthy")


def test_a_worker_that_loads_for_long_is_starting_and_not_unhealthy(engine: Engine) -> None:
    try:
        engine.compose("up", "--detach", "--scale", "worker=1")
        (worker,) = engine.workers()
        engine.docker("exec", worker, *STOP)
        wait_until(lambda: len(checks(engine, worker)) == 5, "five checks have been made", 120)
        assert {one["ExitCode"] for one in checks(engine, worker)} == {1}
        assert engine.health(worker) == "starting"
        engine.docker("exec", worker, *GO_ON)
        wait_until(lambda: engine.health(worker) == "healthy", "the worker is healthy")
    finally:
        engine.forget()


@pytest.mark.parametrize(
    "name", ["cli/health.py", "errors.py"], ids=["any", "one that the kernels' build reads"]
)
def test_a_changed_line_makes_and_ships_our_own_layer_alone(
    engine: Engine, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = engine.layers()
    changed = engine.folder / "src/llama_herd" / name
    as_it_was = changed.read_text()
    changed.write_text(f"{as_it_was}\n# {uuid4()}\n")  # no earlier build had this line
    try:
        from_s = monotonic()
        engine.compose("build", "worker")
        seconds = monotonic() - from_s
        after, num_bytes = engine.layers(), engine.last_layer_bytes()
    finally:
        changed.write_text(as_it_was)
        engine.compose("build", "worker")  # no image with a foreign line stays
    with capsys.disabled():
        print(f"\na changed line: {seconds:.1f} s, a layer of {num_bytes / 1e6:.1f} MB")
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    assert num_bytes < MOST_OF_OURS
    assert seconds < 60  # 5 on a quiet machine


def test_the_image_has_no_health_check(engine: Engine) -> None:
    assert (
        engine.docker("image", "inspect", IMAGE, "--format", "{{json .Config.Healthcheck}}").strip() == "null"
    )
