"""Where a tenant's links may lead."""

import pytest

from llama_herd.worker.broker.tenant_channel import MAX_LISTS, MAX_NAME, may_receive, note_link, sent_links


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


def test_lists_of_links_are_noted_by_tenant_in_bounds() -> None:
    for queue in ("herd.m", "herd.acme:m\x06\x16low", "x" * (MAX_NAME + 1), "billing", "billing"):
        note_link("noted", queue)
    assert sent_links("noted") == {"billing"}
    assert sent_links("another") == set()
    for number in range(MAX_LISTS + 5):
        note_link("noted", f"list {number}")
    assert len(sent_links("noted")) == MAX_LISTS
