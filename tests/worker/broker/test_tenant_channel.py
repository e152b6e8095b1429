"""Where a tenant's links may lead."""

import pytest

from llama_herd.worker.broker.tenant_channel import may_receive


@pytest.mark.parametrize(
    ("queue", "owners"),
    [
        ("herd.m", {"default"}),
        ("herd.acme:m", {"acme"}),
        ("herd.acme:m\x06\x163", {"acme"}),
        ("herd:acme:pending", set()),
        ("celery-task-meta-1", set()),
        ("_kombu.binding.herd.acme:m", set()),
        ("billing", {"default", "acme", "globex"}),
    ],
)
def test_a_queue_of_ours_is_its_tenants_alone_and_a_key_of_ours_is_no_queue(
    queue: str, owners: set[str]
) -> None:
    assert {tenant for tenant in ("default", "acme", "globex") if may_receive(queue, tenant)} == owners
