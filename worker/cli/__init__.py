"""The command `herd`: one file a command, one app that holds them together."""

from llama_herd.worker.cli.app import main

__all__ = ["main"]
