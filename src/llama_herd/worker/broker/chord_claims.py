"""ChordClaims: who may start the body of a chord whose parts are all there.

Celery gives each try a claim of its own, for some seconds. A part that is told again meanwhile, by another
worker or since the reply was lost, would find the chord claimed, and nobody would start the body. One that is
told much later would find it free, and start the body once more. Here a claim is a job's, whoever tells its
end, and lasts as long as results do.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from celery import Celery, current_app

from llama_herd.worker.broker.result_server import ResultsAway

#: How Celery calls a script.
ChordScript = Callable[..., Any]


@contextmanager
def being_current(app: Celery) -> Iterator[None]:
    """Have Celery take this app for the current one on this thread, while the block runs."""
    before = current_app._get_current_object()
    app.set_current()
    try:
        yield
    finally:
        before.set_current()


class ChordClaims:
    """Puts a job's claim in the place of Celery's, for a backend in Redis. Celery before 5.7 has none."""

    app: Celery
    expires: int

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._part = threading.local()

    def on_chord_part_return(self, request: Any, *args: Any, **options: Any) -> Any:
        """Note a part, and start the body if it was the last one.

        Celery 5.5 looks for the groups among the parts with the current app, whatever backend asks. On our
        threads that is not the app of the job's tenant.
        """
        self._part.claim = f"{request.id}:{request.group_index}"
        with being_current(self.app):
            return super().on_chord_part_return(request, *args, **options)  # type: ignore[misc]

    @property
    def _life_s(self) -> int:
        return int(self.expires or 86_400)

    @cached_property
    def _chord_part_return_script(self) -> ChordScript:
        """Note a part. A part that has the claim already gets it again."""
        note: ChordScript = super()._chord_part_return_script  # type: ignore[misc]

        def run(keys: Sequence[str], args: Sequence[Any], client: Any) -> tuple[Any, ...]:
            _, _, size_key, _, _, claim_key = keys
            given = [*args[:-2], self._life_s, self._part.claim]
            num, num_more, size, has_claim = note(keys=keys, args=given, client=client)
            is_whole = bool(size) and num == int(size) + int(num_more or 0)
            if is_whole and not has_claim:
                has_claim = self._chord_claim_extend_script(
                    keys=[claim_key, size_key], args=(), client=client
                )
            return num, num_more, size, has_claim

        return run

    @cached_property
    def _chord_claim_extend_script(self) -> ChordScript:
        extend: ChordScript = super()._chord_claim_extend_script  # type: ignore[misc]

        def run(keys: Sequence[str], args: Sequence[Any], client: Any) -> Any:
            return extend(keys=keys, args=[self._part.claim, self._life_s], client=client)

        return run

    @cached_property
    def _chord_cleanup_script(self) -> ChordScript:
        """Forget the parts. The body is sent by now: if this fails, the claim keeps others from that."""
        clean: ChordScript = super()._chord_cleanup_script  # type: ignore[misc]

        def run(keys: Sequence[str], args: Sequence[Any], client: Any) -> Any:
            try:
                return clean(keys=keys, args=[self._part.claim, self._life_s], client=client)
            except ResultsAway:
                return 0

        return run
