"""Gateways that are killed under a batch, and the law that it keeps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.batch_api import BatchApi
from tests.cli.gateway_process import GatewayProcess

#: So short that another gateway takes over at once.
LEASE_S = 0.6


class Gateways:
    """Some gateways on one storage, of which at least one is alive at any time."""

    def __init__(self, url: str, folder: Path, num: int, files: str, lease_s: float) -> None:
        self._num_started = 0
        self._url, self._folder, self._files, self._lease_s = url, folder, files, lease_s
        self._alive = [self._started() for _ in range(num)]

    def _started(self) -> GatewayProcess:
        self._num_started += 1
        log = self._folder / f"gateway-{self._num_started}.log"
        lease = {"HERD_GATEWAY_BATCH_LEASE_S": str(self._lease_s), "HERD_GATEWAY_GRACE_S": "0"}
        own = {"HERD_GATEWAY_FILES": self._files, "HERD_MODEL_NAME": "tales", **lease}
        return GatewayProcess(self._url, log, **own).__enter__()

    @property
    def url(self) -> str:
        return self._alive[-1].url

    def kill(self) -> None:
        """Kill the oldest one, and start another."""
        self._alive.pop(0).kill()
        self._alive.append(self._started())

    @property
    def api(self) -> BatchApi:
        return BatchApi(lambda: self.url)

    def check_whole(self, batch_id: str, names: Sequence[str], patience_s: float = 60.0) -> None:
        """The batch ends with one line for each name."""
        batch = self.api.end_of(batch_id, patience_s)
        assert batch["status"] == "completed", batch["errors"]
        answers = self.api.content(batch["output_file_id"])
        errors = self.api.content(batch["error_file_id"])
        assert not errors, errors[0]
        assert Counter(one["custom_id"] for one in answers) == Counter(names)
        counts = {"total": len(names), "completed": len(names), "failed": 0}
        assert batch["request_counts"] == counts

    def close(self) -> None:
        for gateway in self._alive:
            gateway.kill()


@contextmanager
def gateways(
    url: str, folder: Path, num: int = 2, files: str = "", lease_s: float = LEASE_S
) -> Iterator[Gateways]:
    """files: their storage; empty: a folder below `folder`."""
    with ExitStack() as stack:
        found = Gateways(url, folder, num, files or str(folder / "files"), lease_s)
        stack.callback(found.close)
        yield found
