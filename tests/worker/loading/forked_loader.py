"""A process that loads a model when it is told to, forked off one that has loaded torch."""

import tempfile
from multiprocessing import Pipe, context
from pathlib import Path

from tests.worker.forked_python import ensure_forkserver


class ForkedLoader(context.ForkServerProcess):
    """Stays until it is killed, with its notes in a folder of the test's."""

    def __init__(self, model: Path, temporary: Path) -> None:
        super().__init__(daemon=True)
        self._model, self._temporary = model, temporary
        self._ours, self._theirs = Pipe()
        ensure_forkserver()
        self.start()

    def wait_until_imported(self) -> None:
        self._ours.recv()

    def load(self) -> None:
        self._ours.send("load")

    def planned_bytes(self) -> int:
        return int(self._ours.recv())

    def run(self) -> None:
        from llama_herd.worker.loading.loaded_model import LoadedModel
        from llama_herd.worker.loading.memory_plan import MemoryPlan
        from llama_herd.worker.settings import WorkerSettings

        tempfile.tempdir = str(self._temporary)
        plans: list[MemoryPlan] = []
        check = MemoryPlan.check

        def noted_check(plan: MemoryPlan, model: str) -> None:
            plans.append(plan)
            check(plan, model)

        MemoryPlan.check = noted_check  # type: ignore[method-assign, assignment]
        settings = WorkerSettings.read(model=self._model, slots=1024, threads=1)
        self._theirs.send("imported")
        self._theirs.recv()
        model = LoadedModel.load(settings, "cpu")
        self._theirs.send(plans[0].num_bytes)
        self._theirs.recv()
        model.close()
