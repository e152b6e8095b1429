"""The client: submit jobs, follow their tokens, fetch results, cancel."""

from llama_herd.tasks.client.client import Client

__all__ = ["Client"]
