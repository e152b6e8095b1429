"""The Celery app: its settings, and starts that it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from kombu import compression
from kombu.exceptions import ContentDisallowed

from llama_herd.errors import SettingsError
from llama_herd.tasks.app import check_worker_start, make_app, refuse_compression, refuse_settings
from llama_herd.tasks.settings import Settings
from tests.local.forked_python import run_forked

WORKER = ("celery", "-A", "llama_herd.tasks.app", "worker")

SETTINGS = Settings(redis_url="redis://:secret@127.0.0.1:6390/2", tenant="acme", model_name="m")


@pytest.fixture
def kombu_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts kombu's compressors back afterwards: they are the process's."""
    for table in ("_encoders", "_decoders"):
        monkeypatch.setattr(compression, table, dict(getattr(compression, table)))


def test_queue_and_results_are_the_ledgers_redis() -> None:
    conf = make_app(SETTINGS).conf
    assert conf.broker_url == conf.result_backend == SETTINGS.redis_url
    assert conf.task_default_queue == "herd.acme:m"
    assert conf.accept_content == conf.result_accept_content == ["json"]
    assert conf.task_acks_late
    assert not conf.worker_enable_remote_control


def test_another_tenants_unacknowledged_messages_are_out_of_reach() -> None:
    names = ("unacked_key", "unacked_index_key")
    options = [make_app(s).conf.broker_transport_options for s in (SETTINGS, Settings())]
    keys = {one[name] for one in options for name in names}
    assert len(keys) == 4
    assert all(key.startswith("herd:") for key in keys)


def test_a_socket_is_named_as_celery_wants_it() -> None:
    app = make_app(Settings(redis_url="unix:///tmp/r.sock?db=3"))
    assert app.conf.broker_url == "redis+socket:///tmp/r.sock?virtual_host=3"


@pytest.mark.long
def test_the_pool_and_the_consumer_are_only_names() -> None:
    code = "import sys, llama_herd.tasks.app; print('llama_herd.worker' in sys.modules)"
    assert run_python("-c", code).stdout.strip() == "False"


@pytest.mark.parametrize("name", ["broker_url", "broker_read_url", "broker_write_url", "result_backend"])
@pytest.mark.parametrize("url", ["redis://:secret@127.0.0.1:6390/3", "amqp://guest:secret@h//", "rpc://"])
def test_another_broker_or_backend_is_refused_in_one_line(
    name: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = make_app(SETTINGS)
    app.conf[name] = url
    with pytest.raises(SystemExit) as caught:
        check_worker_start(app.conf, SETTINGS)
    line = capsys.readouterr().err
    assert caught.value.code == 2
    assert line.count("\n") == 1
    assert ("HERD_RESULT_URL" if name == "result_backend" else "HERD_REDIS_URL") in line
    assert "Fix:" in line
    assert "secret" not in line


@pytest.mark.usefixtures("kombu_compression")
@pytest.mark.parametrize(
    ("own", "url"),
    [
        ("redis://localhost", "redis://localhost:6379/0"),
        ("unix:///r.sock", "redis+socket:///r.sock?virtual_host=0"),
    ],
)
def test_the_same_redis_under_another_spelling_is_not_refused(own: str, url: str) -> None:
    settings = Settings(redis_url=own)
    app = make_app(settings)
    app.conf.broker_url = app.conf.result_backend = url
    check_worker_start(app.conf, settings)


@pytest.mark.usefixtures("kombu_compression")
def test_a_compressed_message_is_not_unpacked() -> None:
    body, content_type = compression.compress(b"x" * 1000, "gzip")
    refuse_compression()
    for name in ("gzip", content_type, *compression.encoders()):
        with pytest.raises(ContentDisallowed):
            compression.decompress(body, name)


def clean_environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HERD", "CELERY"))}
    return kept | variables


def run_python(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        env=clean_environment(**environment),
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.long
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_pool_on_the_command_line_is_refused_in_one_line(pool: str, tmp_path: Path) -> None:
    env = clean_environment(HERD_REDIS_URL="redis://127.0.0.1:1/0")
    done = run_forked([*WORKER, "-P", pool], env, tmp_path)
    assert done.returncode == 2
    assert done.output.count("\n") == 1
    assert "Fix: leave out -P" in done.output


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value"), [("HERD_LEASE_MS", "abc"), ("CELERY_BROKER_URL", "secret@host"), ("HERD_SLOTS", "0")]
)
def test_a_wrong_variable_is_refused_in_one_line(name: str, value: str, tmp_path: Path) -> None:
    done = run_forked(WORKER, clean_environment(**{name: value}), tmp_path)
    assert done.returncode == 2
    assert done.output.count("\n") == 1
    assert done.output.startswith(f"herd worker: {name}")
    assert "secret" not in done.output


@pytest.mark.long
def test_a_new_python_refuses_it_by_standard_error_alone() -> None:
    done = run_python("-m", *WORKER, HERD_LEASE_MS="abc")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("herd worker: HERD_LEASE_MS")


@pytest.mark.parametrize(
    ("app", "error"),
    [("ours", SystemExit), ("ours:app", SystemExit), ("theirs", SettingsError), (None, SettingsError)],
)
def test_only_the_command_that_names_the_app_ends(app: str | None, error: type[BaseException]) -> None:
    with click.Context(click.Command("celery")) as context:
        context.params["app"] = app
        with pytest.raises(error):
            refuse_settings(SettingsError("wrong"), "ours")


@pytest.mark.long
def test_who_imports_the_app_gets_the_error_itself() -> None:
    code = (
        "from llama_herd.errors import SettingsError\n"
        "try: import llama_herd.tasks.app\n"
        "except SettingsError as error: print(error)"
    )
    assert run_python("-c", code, HERD_LEASE_MS="abc").stdout.startswith("HERD_LEASE_MS='abc'")


@pytest.mark.long
@pytest.mark.parametrize(
    ("shop", "current"), [("shop = Celery('shop')", "shop"), ("shop = None", "llama_herd")]
)
def test_a_shop_that_imports_the_app_keeps_its_own_for_its_shared_tasks(shop: str, current: str) -> None:
    code = f"""
from celery import Celery, current_app, shared_task
{shop}
@shared_task
def add(): ...
from llama_herd.tasks.generate import generate
print(current_app.main, add.app.main, generate.app.main)
"""
    assert run_python("-c", code).stdout.split() == [current, current, "llama_herd"]
