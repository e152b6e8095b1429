"""A process that loads a model, and says what it holds then, what it held at most, and what is planned of it:

python -m tests.worker.loading.loaded_bytes
"""

import json

import psutil

from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import peak_bytes


def main() -> None:
    model = LoadedModel.load(WorkerSettings.read(), "cpu")
    found = {
        "resident": psutil.Process().memory_info().rss,
        "peak": peak_bytes("self"),
        "cache": model.cache.storage.nbytes,
        "weights": model.plan.weight_bytes,
    }
    print(json.dumps(found))
    model.close()


if __name__ == "__main__":
    main()
