"""An answer over HTTP that is over."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Reply(NamedTuple):
    """Names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> Any:
        return self.json["error"]
