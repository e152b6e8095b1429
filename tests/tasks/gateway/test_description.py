"""What schemathesis makes of the description, right and wrong: `make test-api`; elsewhere it is skipped."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stand_in import StandIn
from tests.tasks.gateway.gateway_thread import GatewayThread

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(1200)]

CHECKS = (
    "not_a_server_error",
    "response_schema_conformance",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
FOR_S = 600
#: 503 and 507 are documented: a busy machine's Redis may be away, and a disk full. What asks for a paused
#: model waits for it: only one is paused that nothing asks for.
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503", "507"]

[[operations]]
include-name = "POST /v1/queues/{model}/pause"
parameters = { "path.model" = "paused" }
"""


def test_every_answer_is_as_described(gateway: GatewayThread, stand_in: StandIn, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="needs schemathesis: make test-api")
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{gateway.url}/openapi.json"]
    options = ["--checks", ",".join(CHECKS), "--max-time", str(FOR_S), "--continue-on-failure", "--no-color"]
    told = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stdout
    (num,) = re.findall(r"(\d+) generated, \1 passed", told.stdout)
    assert int(num) > 1000
