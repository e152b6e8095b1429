"""Renders chat templates in a helper process, so that a bad one can neither hang nor bloat this process."""

from collections.abc import Mapping

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.reading.file_errors import quoted
from llama_herd.model.text.helper import Helper, HelperAnswer, HelperLimits
from llama_herd.model.text.template_files import DEFAULT

#: The helper's program.
SANDBOX = "llama_herd.model.text.sandbox"


class Renderer:
    """The templates of a model and the helper that renders them, for one thread at a time.

        renderer = Renderer({"default": "Hello {{ name }}"}, HelperLimits())
        renderer.render("default", {"name": "herd"})

    The helper is started when it is first needed. One that went over a limit is replaced at once, so that
    who broke it waits for the next, and nobody else does.
    """

    def __init__(self, sources: Mapping[str, str], limits: HelperLimits) -> None:
        self._sources = sources
        self._limits = limits
        self._helper: Helper | None = None

    def start(self) -> None:
        """Start the helper. Raises ModelFileError when it cannot compile a template."""
        name, started = self._start()
        if started.kind != "ready":
            self.close()
            which = "" if name == DEFAULT else f" {quoted(name)}"
            raise ModelFileError(f"the chat template{which} {_explained(started)}. Mend it or leave it out.")

    def render(self, name: str, variables: Mapping[str, object]) -> str:
        """The text. Raises GenerationError "template_error", which quotes nothing of the variables."""
        answer = self._start()[1] if self._helper is None else HelperAnswer("ready")
        if answer.kind == "ready":
            answer = self._ask("render", name, variables)
            if self._helper is None:
                self._start()
        if answer.kind == "text":
            return answer.text
        raise GenerationError(ErrorCode.TEMPLATE_ERROR, f"messages: the chat template {_explained(answer)}")

    def close(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None

    def _start(self) -> tuple[str, HelperAnswer]:
        """Start a helper and give it the templates: what it says of one that fails, else of the last."""
        name = DEFAULT
        try:
            self._helper = Helper(SANDBOX, self._limits)
        except OSError as error:
            return name, HelperAnswer(
                "late", f"cannot run, since no process could be started: {error.strerror}"
            )
        started = self._checked(self._helper.start())
        if started.kind != "ready":
            return name, started
        for name, source in self._sources.items():
            started = self._ask("compile", name, source)
            if started.kind != "ready":
                break
        return name, started

    def _ask(self, *request: object) -> HelperAnswer:
        assert self._helper is not None
        return self._checked(self._helper.ask(request))

    def _checked(self, answer: HelperAnswer) -> HelperAnswer:
        """An answer; a helper that went over a limit is of no use any more."""
        if answer.is_over_limit:
            self.close()
        return answer


def _explained(answer: HelperAnswer) -> str:
    """The failure of a template as a text that can be printed and stored."""
    reason = answer.text.encode(errors="backslashreplace").decode()
    if answer.is_over_limit:
        return reason
    verb = "refuses them" if answer.kind == "refused" else "fails"
    return f"{verb}: {reason}" if reason else verb
