"""The channels to what Sentinels name as the primary."""

import pytest

from llama_herd.worker.broker.queue_channel import QueueChannel
from llama_herd.worker.broker.sentinel_transport import (
    PrimaryChannel,
    SentinelQueueChannel,
    SentinelTenantChannel,
)
from llama_herd.worker.broker.tenant_channel import TenantChannel


@pytest.mark.parametrize(
    ("channel", "own"), [(SentinelQueueChannel, QueueChannel), (SentinelTenantChannel, TenantChannel)]
)
def test_a_channel_takes_the_options_of_both_its_kinds(channel: type, own: type) -> None:
    kinds = [own, PrimaryChannel]
    options = {option for kind in kinds for option in kind.from_transport_options}  # type: ignore[attr-defined]
    assert set(channel.from_transport_options) == options  # type: ignore[attr-defined]
