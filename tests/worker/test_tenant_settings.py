"""Which tenants a worker serves: what their settings are, and what is refused."""

import pytest

from llama_herd.errors import SettingsError
from llama_herd.tasks.app import app
from llama_herd.worker import process
from llama_herd.worker.broker import celery_config
from llama_herd.worker.settings import WorkerSettings


def test_one_tenant_alone_is_served_unless_told_otherwise() -> None:
    settings = WorkerSettings(tenant="acme", model_name="m")
    assert settings.by_queue == {"herd.acme:m": settings}
    assert settings.for_queue("any") is settings
    assert settings.joint_tenant == "acme"


def test_each_tenant_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERD_TENANTS", "globex,default,acme")
    settings = WorkerSettings.read(model_name="m", slots=3)
    assert {queue: own.tenant for queue, own in settings.by_queue.items()} == {
        "herd.globex:m": "globex",
        "herd.m": "default",
        "herd.acme:m": "acme",
    }
    own = settings.for_queue("herd.acme:m")
    assert own.model_dump() == WorkerSettings(model_name="m", slots=3, tenant="acme", tenants="").model_dump()
    assert settings.for_first_tenant.tenant == "globex"
    assert settings.joint_tenant == "acme+default+globex"


@pytest.mark.parametrize(
    ("tenants", "reason"),
    [
        ("acme,", "got ''"),
        ("acme, globex", "got ' globex'"),
        ("acme+globex", "got 'acme\\+globex'"),
        ("a" * 65, "1 to 64 letters"),
        ("acme,globex,acme", "once, got acme 2 times"),
    ],
)
def test_a_bad_or_double_name_is_refused_in_words(
    tenants: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERD_TENANTS", tenants)
    with pytest.raises(SettingsError, match=f"^HERD_TENANTS='.*{reason}"):
        WorkerSettings.read()


@pytest.mark.long
def test_each_tenants_app_stores_and_sends_on_under_its_own_names() -> None:
    own = WorkerSettings(tenant="acme", model_name="m")
    conf = celery_config.app_of(own).conf
    assert conf.task_default_queue == "herd.acme:m"
    assert conf.result_backend_transport_options["global_keyprefix"] == "herd:acme:"
    assert celery_config.app_of(own) is celery_config.app_of(own)
    assert celery_config.app_of(process.own_settings()) is app
