"""How far from the floor a GPU runs: ours, and llama.cpp and transformers on the same shapes.

    python -m benchmarks.gpu whole --out DIR                  # what tells most first, until the time is over
    python -m benchmarks.gpu whole --out DIR2 --after DIR     # what that has left
    python -m benchmarks.gpu report DIR DIR2 [--write]        # the table, for docs/measured.md
    python -m benchmarks.gpu whole --rehearse                 # all of it, tiny, on the CPU: no figures

README.md beside this file says how to spend a card on it. Every step is a process of its own under a time
limit: `python -m benchmarks.gpu step decode --format Q4_0 --without graphs`. Weights are random, in the shape
of Llama-2-7B, and made on the device.

W1 batch 1 and W2 batch 64: a steady step. W3: 1,024 requests at once, the whole run; W3s: with outputs of 64
to 448 tokens. W4: requests at random times, to the first token. W5: prompts to their first tokens. W6:
process start to first token. W7: memory beyond weights and cache. W8: share of a step that the device idles.
mixed: steps with prompts. kills: two workers that share the card.
"""
