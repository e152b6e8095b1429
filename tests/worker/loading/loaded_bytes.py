"""A process that loads a model, and says what it holds then, what it held at most, and what its cache takes:

python -m tests.worker.loading.loaded_bytes
"""

import json

import psutil

from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.processes import peak_bytes


def main() -> None:
    model = LoadedModel.load(WorkerSettings.read(), "cpu")
    print(json.dumps([psutil.Process().memory_info().rss, peak_bytes("self"), model.cache.num_bytes]))
    model.close()


if __name__ == "__main__":
    main()
