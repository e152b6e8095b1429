"""Settings are read in one way, and what is wrong with them is said in one way."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from llama_herd.errors import SettingsError
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.settings_files import exposed_files
from tests.logged import listening
from tests.tls import Identity, needs_openssl


@pytest.fixture(autouse=True)
def _nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours, and a folder without a .env."""
    monkeypatch.chdir(tmp_path)
    for field in Settings.model_fields:
        for name in Settings.variables(field):
            monkeypatch.delenv(name, raising=False)


def complaint(**given: object) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.read(**given)
    return str(caught.value)


def test_every_wrong_value_is_named_with_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERD_LEASE_MS", "499")
    monkeypatch.setenv("HERD_TENANT", "a\nb")
    tenant, lease = complaint().split("; ")
    assert lease == "HERD_LEASE_MS='499': input should be greater than or equal to 500"
    assert tenant == r"HERD_TENANT='a\nb': must be 1 to 64 letters, digits, underscores or dashes"


@pytest.mark.parametrize("name", ["HERD_REDIS_URL", "CELERY_BROKER_URL", "REDIS_URL"])
def test_the_redis_url_is_named_as_it_was_written_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "user:hunter2@host")
    assert complaint().startswith(f"{name}: must be the URL of a Redis. Fix: write redis://host")
    assert "hunter2" not in complaint()


def test_a_variable_comes_before_the_env_file_and_what_is_given_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("REDIS_URL=nonsense\nHERD_TENANT=file\n")
    assert complaint().startswith("REDIS_URL: ")
    monkeypatch.setenv("CELERY_BROKER_URL", "more nonsense")
    assert complaint().startswith("CELERY_BROKER_URL: ")
    assert complaint(redis_url="again").startswith("redis_url: ")
    assert Settings.read(redis_url="redis://here").tenant == "file"
    assert Settings.read(redis_url="redis://here", tenant="given").tenant == "given"


def test_an_env_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"HERD_TENANT=\xff")
    assert complaint().startswith(".env cannot be read: ")


@pytest.mark.parametrize("line", ["HERD_TENANT acme", "HERD_TENANT='acme"])
def test_a_broken_line_of_an_env_file_is_named_once(tmp_path: Path, line: str) -> None:
    (tmp_path / ".env").write_text(f"A=1\n{line}\n")
    with listening() as logged:
        assert complaint().startswith(".env: line 2 cannot be read. Fix: ")
    assert logged.text == ""


def test_broken_lines_of_others_are_none_of_our_business(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("theirs 'x\nHERD_TENANT=acme\n")
    with listening() as logged:
        assert Settings.read().tenant == "acme"
        assert exposed_files(Settings) == {}
    assert logged.text == ""


def test_an_env_file_without_an_end_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".env").open("wb") as file:
        file.truncate(1 << 40)
    assert complaint().startswith(".env is longer than 1,048,576 bytes")


def test_settings_do_not_show_the_password() -> None:
    assert "hunter2" not in repr(Settings(redis_url="redis://:hunter2@host"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("hunter 2/@\n")
    return path


def test_a_password_completes_the_url_and_one_that_stands_there_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HERD_REDIS_PASSWORD", "hunter 2/@")
    assert Settings.read(redis_url="redis://me@host/1").redis_url == "redis://me:hunter%202%2F%40@host/1"
    assert Settings.read(redis_url="redis://host").redis_url == "redis://:hunter%202%2F%40@host"
    assert Settings.read(redis_url="redis://me:own@host").redis_url == "redis://me:own@host"
    assert "hunter" not in repr(Settings.read())


def test_a_secret_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, secret: Path) -> None:
    monkeypatch.setenv("HERD_REDIS_PASSWORD_FILE", str(secret))
    assert Settings.read().redis_password == "hunter 2/@"
    monkeypatch.setenv("HERD_REDIS_PASSWORD", "nearer")
    assert Settings.read().redis_password == "nearer"


def test_an_env_file_may_name_the_file_of_a_secret(tmp_path: Path, secret: Path) -> None:
    (tmp_path / ".env").write_text(f"HERD_REDIS_PASSWORD_FILE={secret}\n")
    assert Settings.read().redis_password == "hunter 2/@"


def test_the_url_in_a_file_comes_before_the_names_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text("redis://:hunter2@host\n")
    monkeypatch.setenv("REDIS_URL", "redis://other")
    monkeypatch.setenv("HERD_REDIS_URL_FILE", str(tmp_path / "url"))
    assert Settings.read().redis_url == "redis://:hunter2@host"


def test_a_wrong_url_in_a_file_is_named_by_the_variable_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text("user:hunter2@host\n")
    monkeypatch.setenv("REDIS_URL", "redis://other")
    monkeypatch.setenv("HERD_REDIS_URL_FILE", str(tmp_path / "url"))
    assert complaint().startswith("HERD_REDIS_URL_FILE: must be the URL of a Redis.")
    monkeypatch.setenv("HERD_REDIS_URL", "nearer")
    assert complaint().startswith("HERD_REDIS_URL: must be the URL of a Redis.")


def test_a_secrets_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERD_REDIS_PASSWORD_FILE", str(tmp_path / "none"))
    assert re.fullmatch(r"HERD_REDIS_PASSWORD_FILE=.*/none: cannot be read: No such file .*", complaint())


def test_a_secrets_file_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for path, words in {
        "/dev/zero": "is not a regular file",
        tmp_path / "pipe": "is not a regular file",
        tmp_path: "is not a regular file",
        tmp_path / "huge": "is longer than 8,192 bytes",
    }.items():
        for name in ("HERD_REDIS_PASSWORD_FILE", "HERD_REDIS_URL_FILE"):
            with monkeypatch.context() as patch:
                patch.setenv(name, str(path))
                assert complaint().startswith(f"{name}={path}: {words}")


def test_a_secret_that_others_may_read_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, secret = Path(name), Path(name) / "secret"
        secret.touch()
        monkeypatch.setenv("HERD_REDIS_PASSWORD_FILE", str(secret))
        for folder_mode, mode, who in (
            (0o755, 0o644, "everybody"),
            (0o755, 0o604, "everybody"),
            (0o755, 0o640, "its group"),
            (0o755, 0o600, ""),
            (0o700, 0o644, ""),
        ):
            folder.chmod(folder_mode)
            secret.chmod(mode)
            words = f"{secret} has mode {mode:o}: {who} on this machine may read it. Fix: chmod 600 {secret}"
            assert exposed_files(Settings) == ({"HERD_REDIS_PASSWORD_FILE": words} if who else {})


@pytest.mark.parametrize("place", ["/run/secrets/worker_password", "/nowhere"])
def test_what_a_container_engine_hands_over_is_no_cause_for_a_warning(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HERD_REDIS_PASSWORD_FILE", place)
    assert exposed_files(Settings) == {}


@needs_openssl
def test_tls_is_checked_unless_the_url_says_otherwise(tmp_path: Path) -> None:
    here = Identity.make(tmp_path, "127.0.0.1")
    for name in ("ca.pem", "me.pem"):
        (tmp_path / name).symlink_to(here.file)
    read = Settings.read(redis_url="rediss://host", redis_ca_file="ca.pem", redis_cert_file="me.pem")
    assert read.redis_url == "rediss://host?ssl_cert_reqs=required&ssl_ca_certs=ca.pem&ssl_certfile=me.pem"
    assert Settings.read(**read.model_dump()) == read
    open_url = "rediss://host?ssl_cert_reqs=none"
    assert Settings.read(redis_url=open_url).redis_url == open_url


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        ("none.pem", "names a file that does not exist"),
        ("pipe", "names something that is not a regular file"),
    ):
        words = f"{words}. Fix: name a PEM file that this user may read"
        assert complaint(redis_url="rediss://host", redis_ca_file=path) == f"redis_ca_file='{path}': {words}"
        url = f"rediss://host?ssl_keyfile={path}"
        assert complaint(redis_url=url) == f"redis_url: ssl_keyfile={path}: {words}"


@pytest.mark.parametrize("url", ["redis://host", "unix:///r.sock"])
def test_a_certificate_without_tls_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    assert "Fix: write rediss://" in complaint(redis_url=url, redis_ca_file="ca.pem")


def test_the_models_that_may_have_no_worker_are_names_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERD_MODELS", " tales, llama-3.1 ,tales")
    assert Settings.read().standing_models == ("tales", "llama-3.1")
    assert Settings.read(models="").standing_models == ()


MANY = ",".join(map(str, range(257)))


@pytest.mark.parametrize(("models", "what"), [("a,b c", "'b c'"), ("a,,b", "''"), (MANY, "257")])
def test_what_is_no_list_of_models_is_refused(models: str, what: str) -> None:
    assert complaint(models=models).startswith("models=")
    assert what in complaint(models=models)
