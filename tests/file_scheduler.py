"""Which process runs which files of tests, where several share them."""

from typing import Any

from xdist.scheduler import LoadFileScheduling

#: Files that load transformers, which takes two seconds: one process does, for all of them.
WITH_TRANSFORMERS = {
    "tests/cli/test_inspect.py",
    "tests/hostile/test_hostile_files.py",
    "tests/model/files/test_model_file.py",
    "tests/model/files/test_safetensors_model.py",
    "tests/model/test_config.py",
    "tests/model/shape/test_families.py",
    "tests/model/test_llama2.py",
    "tests/model/test_loading.py",
    "tests/model/text/test_chat.py",
    "tests/model/text/test_template_files.py",
    "tests/model/text/test_template_law.py",
    "tests/model/text/test_tokenizer_json.py",
    "tests/worker/engine/sampling/test_logits_processors.py",
    "tests/worker/loading/test_servable_model.py",
}

TOGETHER = "with transformers"

#: Files that only compute; all others also wait, for processes and for time to pass, and these most.
COMPUTING = (TOGETHER, "tests/worker/engine/", "tests/model/", "tests/training/")
WAITING = ("tests/cli/", "tests/local/", "tests/worker/")


class FileScheduler(LoadFileScheduling):  # type: ignore[misc]
    """A file at a time, in the order of the collection, but for some that keep together.

    One process begins with what computes, one with what waits little, the others with what waits most: so
    the cores are busy all the time.
    """

    def __init__(self, config: Any, log: Any = None) -> None:
        config.option.loadscopereorder = False  # a file of one test may well be the slowest
        super().__init__(config, log)

    def remove_node(self, node: Any) -> str | None:
        """The test that a process died of, if any. It has failed, and is not run again; the others are."""
        files = self.assigned_work[node]
        left = (test for tests in files.values() for test, is_done in tests.items() if not is_done)
        crashed = next(left, None)
        if crashed is not None:
            files[self._split_scope(crashed)][crashed] = True
        for file in [file for file, tests in files.items() if all(tests.values())]:
            del files[file]  # whoever got a file without tests would wait for the end of one
        super().remove_node(node)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """A process in the place of a dead one has no tests at first, and begins none before it has two."""
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return TOGETHER if file in WITH_TRANSFORMERS else file

    def _assign_work_unit(self, node: Any) -> None:
        computes, waits = node is self.nodes[0], node not in self.nodes[:2]

        def order(file: str) -> tuple[bool, int, bool]:
            ranks = [rank for rank, start in enumerate(COMPUTING) if file.startswith(start)]
            return bool(ranks) != computes, ranks[0] if ranks else 0, file.startswith(WAITING) != waits

        self.workqueue.move_to_end(min(self.workqueue, key=order), last=False)
        super()._assign_work_unit(node)
