"""The settings that a demo adds to those of the user."""

from llama_herd.cli.demo.demo import UNSERVED_S, demo_settings
from llama_herd.worker.settings import WorkerSettings


def test_a_demo_keeps_to_its_own_redis_and_waits_for_no_other_model() -> None:
    own = demo_settings(WorkerSettings(tenants="acme", slots=3), "redis://here")
    assert (own.redis_url, own.tenants, own.slots) == ("redis://here", "", 3)
    assert 0 < own.unserved_timeout_s == UNSERVED_S < WorkerSettings().unserved_timeout_s
