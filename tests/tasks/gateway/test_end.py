"""A gateway that ends: what becomes of answers that are not whole yet."""

import json

import pytest

from tests.chaos.harness.patience import wait_until
from tests.logged import listening
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.herd import Herd

pytestmark = pytest.mark.redis

JOB = {"model": "tales", "prompt": "x", "max_tokens": 4}


def test_who_still_waits_when_the_grace_is_over_hears_why_and_may_ask_another(
    redis_url: str, herd: Herd
) -> None:
    with GatewayThread(redis_url, grace_s=0, model_name="tales") as gateway:
        connection = gateway.connect()
        connection.request("POST", "/v1/completions", json.dumps(JOB), {"Content-Type": "application/json"})
        wait_until(lambda: herd.redis.zcard("herd:default:pending") == 1, "the job waits")
    answer = connection.getresponse()
    assert answer.status == 503
    assert answer.headers["Retry-After"]
    assert json.loads(answer.read())["error"]["code"] == "gateway_stopping"


def test_a_second_ctrl_c_ends_it_without_a_traceback(redis_url: str) -> None:
    with listening() as logged, GatewayThread(redis_url, grace_s=60) as gateway:
        gateway._server.force_exit = True
    assert logged.text == ""
