"""ResultReaders: whether those who send jobs look for the results where this worker stores them."""

from collections.abc import Mapping
from typing import Any

import structlog

from llama_herd.tasks.connection.redis_url import masked, split_url
from llama_herd.tasks.protocol.message import BESIDE_JOBS, RESULTS_AT
from llama_herd.tasks.settings import Settings

log = structlog.get_logger(__name__)

#: Any sender may name any place: so many are told, of so many characters.
MAX_TOLD, MAX_CHARS = 20, 200


class ResultReaders:
    """Looks at what senders say of themselves: those whose app has called `route_links` do."""

    def __init__(self, settings: Settings) -> None:
        is_remote = settings.keeps_results_elsewhere
        self._ours = masked(settings.results_url) if is_remote else BESIDE_JOBS
        self._told: set[str] = set()

    def look(self, headers: Mapping[str, Any]) -> None:
        """Log once for each place that it is another one than ours."""
        said = headers.get(RESULTS_AT)
        if not isinstance(said, str) or headers.get("ignore_result") or len(self._told) >= MAX_TOLD:
            return
        place = said[:MAX_CHARS]
        if _database(place) != _database(self._ours) and place not in self._told:
            self._told.add(place)
            log.warning(
                "a sender looks for results where none are stored",
                result_backend=place,
                stored_at=self._ours,
                fix="give the workers its result_backend as HERD_RESULT_URL, or the sender theirs",
            )


def _database(place: str) -> tuple[str, str]:
    """What is the same of a place for all who see it: a host may have several names."""
    try:
        parts = split_url(place)
    except ValueError:
        return place, ""
    is_redis = parts.scheme.startswith(("redis", "sentinel", "unix"))
    return ("redis", parts.path.strip("/") or "0") if is_redis else (place, "")
