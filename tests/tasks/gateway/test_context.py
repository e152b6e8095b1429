"""What a gateway keeps of its tenants."""

from pathlib import Path

from llama_herd.tasks.feeder.batch_execution import BatchCount
from llama_herd.tasks.gateway.context import MAX_CLIENTS, GatewayContext
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.storage.folder import Folder


def test_of_many_tenants_it_keeps_the_clients_of_those_that_have_called_last(tmp_path: Path) -> None:
    context = GatewayContext(GatewaySettings.read(), BatchCount(), Folder(tmp_path))
    first, second, *_ = [context.client_of(f"tenant-{number}") for number in range(MAX_CLIENTS)]
    assert context.client_of("tenant-0") is first
    context.client_of("another")
    assert context.client_of("tenant-0") is first
    assert context.client_of("tenant-1") is not second
