"""Several renderers of a model's chat templates, so that nobody's heavy chats hold up all others."""

from collections import deque
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Lock

from llama_herd.model.text.helper import Limits
from llama_herd.model.text.renderer import Renderer


class RendererPool:
    """Renders as many chats at a time as it has helpers; further calls are served as they came.

    Any thread may call. So a thread has one helper at most, and where there are fewer helpers than threads,
    each goes before the second call of another.
    """

    def __init__(self, sources: Mapping[str, str], limits: Limits, num_helpers: int) -> None:
        """Start the first helper, the others when they are needed.

        Raises ModelFileError when a template cannot be compiled.
        """
        self._lock = Lock()
        self._idle = [Renderer(sources, limits) for _ in range(num_helpers)]
        self._waiting = deque[SimpleQueue[Renderer]]()
        self._is_closed = False
        self._idle[-1].start()

    def render(self, name: str, variables: Mapping[str, object]) -> str:
        """The text. Raises GenerationError "template_error", which quotes nothing of the variables."""
        renderer = self._take()
        try:
            return renderer.render(name, variables)
        finally:
            self._give_back(renderer)

    def close(self) -> None:
        """End the helpers, each as soon as it is idle."""
        with self._lock:
            self._is_closed = True
            for renderer in self._idle:
                renderer.close()

    def _take(self) -> Renderer:
        """The one that was used last, so that no more are started than are needed."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            turn = SimpleQueue[Renderer]()
            self._waiting.append(turn)
        return turn.get()

    def _give_back(self, renderer: Renderer) -> None:
        """Hand over to who waits longest: who gives back cannot take again before."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(renderer)
                return
            self._idle.append(renderer)
            if self._is_closed:
                renderer.close()
