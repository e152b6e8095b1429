"""The command `herd`: one file a command, one app that holds them together."""

import sys

from llama_herd.extras import install_command, missing_modules

__all__ = ["main"]


def main() -> None:
    """The entry point."""
    missing = " and ".join(missing_modules("cli"))
    if missing:
        print(f"herd: the command needs {missing}. Fix: {install_command('cli')}", file=sys.stderr)
        raise SystemExit(2)
    from llama_herd.cli.app import run_app

    run_app()
