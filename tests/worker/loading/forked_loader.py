"""A process that loads a model when it is told to, forked off one that has loaded torch."""

import os
import sys
from pathlib import Path

from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.memory_plan import MemoryPlan
from llama_herd.worker.settings import WorkerSettings
from tests.local.forked_python import start_piped


class ForkedLoader:
    """Stays until it is killed, with its notes in a folder of the test's."""

    def __init__(self, model: Path, temporary: Path) -> None:
        env = {**os.environ, "TMPDIR": str(temporary)}
        self.process = start_piped([__name__, str(model)], env, temporary)

    def load(self) -> None:
        print(file=self.process.stdin, flush=True)

    def planned_bytes(self) -> int:
        return int(self.process.stdout.readline())


def main(model: Path) -> None:
    plans: list[MemoryPlan] = []
    check = MemoryPlan.check

    def noted_check(plan: MemoryPlan, model: str) -> None:
        plans.append(plan)
        check(plan, model)

    MemoryPlan.check = noted_check  # type: ignore[method-assign, assignment]
    settings = WorkerSettings.read(model=model, slots=1024, threads=1)
    sys.stdin.readline()
    loaded = LoadedModel.load(settings, "cpu")
    print(plans[0].num_bytes, flush=True)
    sys.stdin.readline()
    loaded.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
