"""How fast this processor runs a model: ours, its peers and the floor, in one call.

    python -m benchmarks.speed [NAME] [--quick] [--write]        # make bench, make bench-quick

Each engine is a process of its own that keeps its model loaded (`ours.py`, `transformers_peer.py`,
`llama_cpp_peer.py`), so all can take turns, round by round, on the same file. A process that dies is a row
that says so. `make bench-peers` builds llama.cpp before; without it there is no ratio to it.

NAME is that of a further processor: its tables stand beside the others', and the README stays as it is.
"""
