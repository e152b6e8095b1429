"""What a command needs besides the client's packages."""

from importlib.util import find_spec

from llama_herd.errors import BadInput

#: Modules of the extra `worker`.
WORKER_MODULES = ("gguf", "jinja2", "numpy", "structlog", "tokenizers", "torch")


def missing_worker_modules() -> list[str]:
    """Those that are not installed."""
    return [name for name in WORKER_MODULES if find_spec(name) is None]


def need_worker_extra(command: str) -> None:
    """Raise BadInput, which names the fix, when the packages that a worker needs are not installed."""
    missing = missing_worker_modules()
    if missing:
        raise BadInput(
            f"`{command}` runs a model here and needs {', '.join(missing)}. "
            "Fix: pip install 'llama-herd[worker]'"
        )
