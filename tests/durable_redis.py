"""A Redis whose deaths cost nothing."""

from tests.chaos.harness.fragile_redis import FragileRedis


class DurableRedis(FragileRedis):
    """One that keeps all that it has acknowledged, over its own death."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--appendfsync", "always"]
