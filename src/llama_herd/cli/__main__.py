"""`python -m llama_herd.cli`: the same as `herd`, for child processes of the same Python."""

from llama_herd.cli import main

main()
