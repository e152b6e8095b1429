"""Settings are read in one way, and what is wrong with them is said in one way."""

from pathlib import Path

import pytest

from llama_herd.errors import SettingsError
from llama_herd.tasks.settings import Settings


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
    assert tenant == r"HERD_TENANT='a\nb': string should match pattern '^[A-Za-z0-9_-]{1,64}$'"


@pytest.mark.parametrize("name", ["HERD_REDIS_URL", "CELERY_BROKER_URL", "REDIS_URL"])
def test_the_redis_url_is_named_as_it_was_written_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "user:hunter2@host")
    assert complaint().startswith(f"{name}: must be the URL of a Redis: redis://host")
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


def test_settings_do_not_show_the_password() -> None:
    assert "hunter2" not in repr(Settings(redis_url="redis://:hunter2@host"))
