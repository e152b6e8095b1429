"""Services that use the client can test themselves against fakeredis: no server, all scripts.

Its server hangs up after an error, so whatever sends several scripts at once (`status`, `batch`) needs
a real one.
"""

from collections.abc import Iterator
from threading import Thread

import pytest
from fakeredis import TcpFakeServer

from llama_herd.tasks import Client


@pytest.fixture
def url() -> Iterator[str]:
    server = TcpFakeServer(("127.0.0.1", 0))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.long
def test_a_client_submits_and_cancels_on_fakeredis(url: str) -> None:
    with Client(url) as client:
        job_id = client.submit(prompt="hello", job_id="job-1")
        assert client.history(job_id).record.state == "queued"
        assert client.cancel(job_id) == "cancelled"
        assert client.result(job_id, timeout_s=30).finish_reason == "cancelled"
