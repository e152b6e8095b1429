"""How far from the floor a GPU runs: W1 to W8 of ours, and transformers on the same shapes.

Three unattended runs of nine minutes each, in the order of what is worth most; README.md beside this file
says how to spend a lent card on them:

    python -m benchmarks.gpu first --out DIR            # what runs, what is right, what a step takes
    python -m benchmarks.gpu second --out DIR --after DIR1   # the queue, prompts, memory, blocks
    python -m benchmarks.gpu third --out DIR --after DIR1 DIR2   # arrivals, process start, the peers
    python -m benchmarks.gpu report DIR1 DIR2 DIR [--readme]     # the table
    python -m benchmarks.gpu first --rehearse           # all of it, tiny, on the CPU: no figures

Every step is a process of its own under a time limit: `python -m benchmarks.gpu step decode --format Q4_0
--without graphs`. Weights are random, in the shape of Llama-2-7B, and made on the device.

W1 batch 1 and W2 batch 64: a steady step. W3: 1,024 requests at once, the whole run. W4: requests at random
times, to the first token. W5: prompts to their first tokens. W6: process start to first token. W7: memory
beyond weights and cache. W8: share of a step that the device idles.
"""
