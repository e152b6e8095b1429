"""What a client pays for importing us: in a fresh interpreter, since others have imported torch here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import llama_herd
import llama_herd.tasks

pytestmark = pytest.mark.long

HEAVY = {"torch", "numpy", "gguf", "tokenizers", "celery", "kombu", "llama_herd.model", "llama_herd.worker"}


def modules_after(code: str) -> set[str]:
    show = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_a_client_brings_neither_torch_nor_celery() -> None:
    """Not in any way to import it: all of them in one interpreter."""
    ways = (
        "import llama_herd.tasks",
        "import llama_herd.tasks.client.client, llama_herd.tasks.client.async_client",
        "from llama_herd.tasks import *",
        "from llama_herd import *",
    )
    assert not modules_after("\n".join(ways)) & HEAVY


def test_the_celery_app_brings_no_torch() -> None:
    code = "import llama_herd.tasks.app, llama_herd.tasks.generate"
    assert modules_after(code) & HEAVY == {"celery", "kombu"}


def test_every_public_name_of_the_package_can_be_had() -> None:
    source = Path(llama_herd.__file__).read_text()
    assert sorted(re.findall(r"\b(\w+) as \1\b", source)) == llama_herd.__all__  # type checkers see these
    for name in llama_herd.__all__:
        assert getattr(llama_herd, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        _ = llama_herd.Nothing


def test_every_public_name_can_be_had() -> None:
    for name in llama_herd.tasks.__all__:
        assert getattr(llama_herd.tasks, name).__name__ == name
    with pytest.raises(AttributeError, match="Nothing"):
        _ = llama_herd.tasks.Nothing
