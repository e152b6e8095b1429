"""The fixtures as a shop has them: a herd of two models that are none, for all tests of this folder."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from llama_herd.testing.plugin import herd as herd, herd_session as herd_session


@pytest.fixture(scope="session")
def herd_models() -> Sequence[str]:
    return ("tales", "qwen")


@pytest.fixture(scope="session")
def herd_settings() -> Mapping[str, Any]:
    return {"lease_ms": 500, "slots": 2}
