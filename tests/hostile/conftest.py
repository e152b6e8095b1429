"""A gateway on an empty Redis."""

from tests.tasks.gateway.conftest import gateway, lasting_gateway

__all__ = ["gateway", "lasting_gateway"]
