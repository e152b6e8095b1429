"""The extras of the package: what each brings, what is missing of it, and how to install it."""

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from llama_herd.errors import BadInput

#: The modules that must be there, by the extra that brings them.
MODULES: Mapping[str, tuple[str, ...]] = {
    "cli": ("rich", "typer"),
    "gateway": ("h11", "prometheus_client", "python_multipart", "standardwebhooks", "starlette", "uvicorn"),
    "hub": ("huggingface_hub",),
    "testing": ("celery", "structlog"),
    "worker": ("celery", "gguf", "jinja2", "numpy", "structlog", "tokenizers", "torch"),
}

NAME = "llama-herd"
#: In place of a version where nothing is installed, as where only PYTHONPATH leads to the code.
NO_VERSION = "0+unknown"
_IN_A_CHECKOUT = "pip install '.[{}]' in a checkout of llama-herd"


def own_version() -> str:
    """The version that is installed."""
    try:
        return distribution(NAME).version
    except PackageNotFoundError:
        return NO_VERSION


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation: its folder is named where it is a checkout."""
    try:
        said = distribution(NAME).read_text("direct_url.json")  # PEP 610: absent where an index had it
    except PackageNotFoundError:
        return _IN_A_CHECKOUT.format(extra)
    origin = json.loads(said or "{}")
    if "dir_info" not in origin:
        return f"pip install 'llama-herd[{extra}]'"  # pip keeps the one that is installed
    folder = Path(url2pathname(urlsplit(origin["url"]).path))
    if not (folder / "pyproject.toml").exists():
        return _IN_A_CHECKOUT.format(extra)
    return f"pip install {'-e ' if origin['dir_info'].get('editable') else ''}'{folder}[{extra}]'"


def missing_modules(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [name for name in MODULES[extra] if find_spec(name) is None]


def need_extra(extra: str, command: str) -> None:
    """Raise BadInput, with the fix, when the packages of an extra that `command` needs are not installed."""
    missing = missing_modules(extra)
    if missing:
        raise BadInput(f"`{command}` needs {', '.join(missing)}. Fix: {install_command(extra)}")
