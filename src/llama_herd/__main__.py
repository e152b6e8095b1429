"""`python -m llama_herd`: the same as `herd`, also where no script is on the PATH."""

from llama_herd.cli import main

main()
