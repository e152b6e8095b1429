"""Spans of time as people write them: 90s, 5m, 2h, 1d."""

import re

from llama_herd.errors import BadInput

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str, name: str) -> float:
    """The seconds of a span; without a unit they are seconds. Raises BadInput with the option's name."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|m|h|d|)", text)
    if match is None or not float(match[1]):
        raise BadInput(f"{name} {text}: must be a time such as 500ms, 90s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
