"""How far from the floor a GPU runs: W1 to W8 of ours, and transformers on the same shapes.

Everything is measured with random weights in the shape of Llama-2-7B, which it writes itself. Each call
measures the card's ceilings, then what `--only` names, and adds to one JSON file, so that calls of some
minutes add up:

    python -m benchmarks.gpu --only W1,W1q,W2,W5,W7,W8 --profile    # engine alone
    python -m benchmarks.gpu --only W3,W4                           # through Redis and Celery
    python -m benchmarks.gpu --only W6,static                       # process start; static batches
    python -m benchmarks.gpu --only continuous                      # transformers' continuous batching
    python -m benchmarks.gpu --readme                               # table into README.md, nothing measured
    python -m benchmarks.gpu --dry-run                              # all of it, tiny, on the CPU: no figures

W1 batch 1 and W2 batch 64: a steady step. W1q: W1 with Q8_0. W3: 1,024 requests at once, the whole run.
W4: requests at random times, to the first token. W5: prompts to their first tokens. W6: process start to
first token. W7: memory beyond weights and cache. W8: share of a step that the device idles.

A machine without a network needs Python 3.12, torch, transformers, numpy, this repository, and the packages
of `wheels.txt`. Where there is a network, collect them (13 MB) in a folder that git ignores:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \\
        -c constraints.txt -r benchmarks/gpu/wheels.txt -d .wheels

Then there, in the repository's root:

    python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/site .wheels/*.whl &&
    export PYTHONPATH=/tmp/site:$PWD/src:$PWD && python3 -m pytest -q -m gpu tests/gpu;
    python3 -m benchmarks.gpu --commit HASH --only W1,W1q,W2,W5,W7,W8 --profile

What it writes, benchmarks/results/gpu.json and gpu-profile.txt, must come back before the next call.
"""
