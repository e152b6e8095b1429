"""A process with one more OpenMP at work: runtimes and a model's ids without it, and with it.

python -m tests.worker.loading.openmp_twice COPY_OF_LIBGOMP
"""

import ctypes
import json
import sys

from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.machine import openmp_runtimes
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import run, sequence

NUM_THREADS = 3


def main() -> None:
    settings = WorkerSettings.read(slots=2, threads=2)
    model = LoadedModel.load(settings, "cpu")

    def said() -> list[object]:
        prompts = ["a tale " * 40, "once"]
        found = run(model, settings, [sequence(model, prompt, prompt) for prompt in prompts])
        return [openmp_runtimes(), found.ids]

    before = said()
    num_threads = work_by(ctypes.CDLL(sys.argv[1]))
    print(json.dumps([before, said(), num_threads, model.plan.form.kernels.note]))
    model.close()


def work_by(openmp: ctypes.CDLL) -> int:
    """How many threads of it have done something."""
    numbers = set[int]()
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: numbers.add(openmp.omp_get_thread_num()))
    openmp.GOMP_parallel(work, None, NUM_THREADS, 0)
    return len(numbers)


if __name__ == "__main__":
    main()
