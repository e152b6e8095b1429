"""The option --set NAME=VALUE: any field of a job's sampling."""

import json
from typing import Any

from llama_herd.errors import BadInput


def named_value(text: str) -> tuple[str, Any]:
    """The name and value of a --set option. Raises BadInput."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise BadInput(f"--set {name}: must be followed by = and a value in JSON, as in min_p=0.1") from None
