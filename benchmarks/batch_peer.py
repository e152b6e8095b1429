"""What a user would run instead of `herd batch`: a loop over the rows of a file, in this process.

    python -m benchmarks.batch_peer transformers in.jsonl 200

Prints one JSON object: rows a second, and the most memory that this process held. Answers are written when
the loop is over, as such scripts do: a kill before that loses all of them.
"""

import json
import resource
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.peer import generate, load_peer
from llama_herd.model.gguf_model import GGUFModel
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings

Row = dict[str, Any]
#: Runs one row and returns the tokens that it generated.
Loop = Callable[[Row], int]


def transformers_loop() -> Loop:
    tokenizer = LoadedModel.load(WorkerSettings(slots=1), "cpu").tokenizer
    with GGUFModel.open(BUNDLED_MODEL) as file:
        model = load_peer(file)
    return lambda row: generate(model, [tokenizer.encode(row["prompt"])], row["max_tokens"])


def llama_cpp_loop() -> Loop:
    from llama_cpp import Llama

    model = Llama(str(BUNDLED_MODEL), n_ctx=512, n_threads=WorkerSettings().threads or 1, verbose=False)

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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"rows_per_s": len(rows) / seconds, "tokens_per_s": num_tokens / seconds, "peak_bytes": peak}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
