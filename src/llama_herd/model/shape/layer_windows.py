"""Which layers of a model see all tokens, and which the last ones only."""

from collections.abc import Sequence


def local_layers(period: int, num_layers: int) -> list[bool]:
    """Which layers have a window when every `period`th has none; period 0: all."""
    return [not period or (layer + 1) % period != 0 for layer in range(num_layers)]


def layer_windows(window: int, has_window: Sequence[bool]) -> tuple[int, ...]:
    """Each layer's window, 0 where it has none; empty when no layer has one."""
    return tuple(window if has else 0 for has in has_window) if window and any(has_window) else ()
