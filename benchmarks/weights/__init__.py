"""Weights of every type: how fast they are read, what they take, and what a worker does with such files.

    python -m benchmarks.weights types|starts|workers [--files FOLDER] [--write]

- `types`: values a second of `dequantize` and of the gguf package, on the same blocks.
- `starts`: files of 1.1 B random weights, with types mixed as in llama.cpp. `herd generate --local` of one
  token, from the start of the command, with its peak memory, in every form of the weights.
- `workers`: tokens a second of a worker, through its queue.

"as before" are the settings that stood for all before there were forms and kernels. FOLDER keeps the files,
whose writing takes minutes, for the next call.
"""
