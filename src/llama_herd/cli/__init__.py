"""The command `herd`: one file a command, one app that holds them together.

`herd health` runs alone, since containers run it every few seconds; where it has a port to ask, before all
imports of ours.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point."""
    try:
        _run()
    except KeyboardInterrupt:  # while it imports, before typer hears of it
        raise SystemExit(130) from None


def _run() -> None:
    if sys.argv[1:] == ["health"]:
        _ask_port()
    from llama_herd.extras import install_command, missing_modules

    missing = " and ".join(missing_modules("cli"))
    if missing:
        print(f"herd: the command needs {missing}. Fix: {install_command('cli')}", file=sys.stderr)
        raise SystemExit(2)
    if sys.argv[1:2] == ["health"]:
        from llama_herd.cli.health import run_health as run
    else:
        from llama_herd.cli.app import run_app as run
    run()


def _ask_port() -> None:
    """Exit as `herd health` does, if there is a port to ask."""
    from llama_herd.cli.health_port import complaint_at, port_in_use

    if port := port_in_use():
        if complaint := complaint_at(port):
            print(f"herd: {complaint}", file=sys.stderr)
        raise SystemExit(bool(complaint))
