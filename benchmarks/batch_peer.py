"""What a user would run instead of `herd batch`: a loop over the rows of a file, in this process.

    python -m benchmarks.batch_peer transformers in.jsonl 200

Prints one JSON object: rows a second, and the most memory that this process held. Answers are written when
the loop is over, as such scripts do: a kill before that loses all of them. Each loop imports what it needs,
so none pays for the memory of another's packages.
"""

import json
import os
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.process_figures import peak_bytes
from llama_herd.worker.settings import BUNDLED_MODEL

#: Threads, as many as a worker takes by default: it leaves one core for its other threads.
THREADS = max(1, len(os.sched_getaffinity(0)) - 1)

Row = dict[str, Any]
#: Runs one row and returns the tokens that it generated.
Loop = Callable[[Row], int]


def transformers_loop() -> Loop:
    import torch

    from benchmarks.peer import generate, load_peer
    from llama_herd.model.files.gguf_model import GGUFModel

    torch.set_num_threads(THREADS)
    with GGUFModel.open(BUNDLED_MODEL) as file:
        tokenizer, model = file.read_tokenizer(), load_peer(file)
    return lambda row: generate(model, [tokenizer.encode(row["prompt"])], row["max_tokens"])


def llama_cpp_loop() -> Loop:
    from llama_cpp import Llama, llama_cpp

    default_params = llama_cpp.llama_model_default_params

    def params() -> Any:
        """Weights as they are in the file: laid out for AMX, llama.cpp's kernels crash on some machines."""
        found = default_params()
        found.use_extra_bufts = False
        return found

    llama_cpp.llama_model_default_params = params
    model = Llama(str(BUNDLED_MODEL), n_ctx=512, n_threads=THREADS, n_threads_batch=THREADS, verbose=False)

    def run(row: Row) -> int:
        answer = model.create_completion(
            row["prompt"], max_tokens=row["max_tokens"], temperature=0, logit_bias={model.token_eos(): -100.0}
        )
        return int(answer["usage"]["completion_tokens"])

    return run


LOOPS = {"transformers": transformers_loop, "llama-cpp-python": llama_cpp_loop}


def main(name: str, path: str, num_rows: str) -> None:
    run = LOOPS[name]()
    with Path(path).open() as file:
        rows = [json.loads(line) for line in islice(file, int(num_rows))]
    run(rows[0])
    started = perf_counter()
    num_tokens = sum(run(row) for row in rows)
    seconds = perf_counter() - started
    speed = {"rows_per_s": len(rows) / seconds, "tokens_per_s": num_tokens / seconds}
    print(json.dumps(speed | {"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
