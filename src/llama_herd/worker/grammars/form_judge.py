"""Judges forms in a helper process, so that a bad one can neither hang nor bloat this process."""

from llama_herd.model.text.helper import Helper, HelperAnswer, HelperLimits
from llama_herd.tasks.protocol.structured_outputs import OutputForm

#: The helper's program.
JUDGE = "llama_herd.worker.grammars.judge"

JUDGE_LIMITS = HelperLimits(cpu_s=1.0, wall_s=10.0, memory_bytes=256 << 20)


class FormJudge:
    """The helper that judges forms, for one thread at a time. It is started when it is first needed."""

    def __init__(self, limits: HelperLimits = JUDGE_LIMITS) -> None:
        self._limits = limits
        self._helper: Helper | None = None

    def judge(self, form: OutputForm) -> HelperAnswer:
        """The form's grammar, or why there is none; after one that went over a limit comes another helper."""
        answer = self._start() if self._helper is None else HelperAnswer("ready")
        if answer.kind == "ready" and self._helper is not None:
            answer = self._helper.ask((form.kind, form.text))
        if answer.is_over_limit:
            self.close()
        return answer

    def close(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _start(self) -> HelperAnswer:
        try:
            self._helper = Helper(JUDGE, self._limits)
        except OSError as error:
            return HelperAnswer(
                "late", f"cannot be read, since no process could be started: {error.strerror}"
            )
        return self._helper.start()
