"""A real S3 server process with a bucket. `make test-s3` brings it; elsewhere these tests are skipped."""

import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryFile
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from llama_herd.local.redis_server import END_WITH_PARENT, free_port
from tests.chaos.harness.patience import wait_until

BUCKET = "herd"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Its address, which the environment names as well."""
    pytest.importorskip("moto", reason="needs moto: make test-s3")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with TemporaryFile() as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = Popen(command, stdout=log, stderr=log, preexec_fn=END_WITH_PARENT)
        try:
            wait_until(lambda: _answers(url) or process.poll() is not None, "the S3 server is up")
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url) as answer:
            return bool(answer.status)
    except (URLError, OSError):
        return False


@pytest.fixture
def bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a place in a bucket that nobody else uses."""
    access = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    from s3fs import S3FileSystem

    files = S3FileSystem(skip_instance_cache=True)
    if not files.exists(BUCKET):
        files.mkdir(BUCKET)
    return f"s3://{BUCKET}/{tmp_path.name}"
