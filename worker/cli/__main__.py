"""`python -m llama_herd.worker.cli`: the same as `herd`, for child processes of the same Python."""

from llama_herd.worker.cli import main

main()
