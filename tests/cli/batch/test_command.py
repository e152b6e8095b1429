"""The command beside a stand-in for workers: files, failures, order, other terminals."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.batch.batch_run import HOPELESS_ROWS
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.events import Failure
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.batch_command import BatchCommand, rows
from tests.cli.herd_command import fork_herd, invoke

pytestmark = [pytest.mark.redis, pytest.mark.long]

BROKEN = Failure(code="numeric_error", message="no numbers")


def test_every_row_has_an_answer_and_redis_keeps_nothing(
    command: BatchCommand, worker: StandIn, redis: Redis
) -> None:
    command.write(rows(300))
    done = command.run()
    assert done.exit_code == 0, done.output
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(300))
    assert all(text.startswith(f"{name}: ") for name, text in command.texts().items())
    assert command.failures() == []
    assert "300 rows done, 0 failed" in done.stdout
    assert "1,200 in, 4,800 out" in done.stdout
    keys = [key for key in redis.keys("*{batch-*") if redis.type(key) == b"stream"]
    assert keys == []


def test_bad_lines_and_failed_rows_go_beside_with_their_line_and_stop_nothing(
    command: BatchCommand, redis_url: str
) -> None:
    good = rows(3)
    command.write([good[0], '{"prompt": ', "", good[1], good[0], {"prompt": "c9", "colour": 1}, good[2]])
    with StandIn(redis_url, verdict=lambda _, job: BROKEN if job.prompt == "c2" else None):
        done = command.run()
    assert done.exit_code == 1
    assert f"failed rows  in {command.errors}, 3 of them by invalid_line, the first: line: " in done.stdout
    assert sorted(command.names()) == ["c0", "c1"]
    failures = {one["line"]: one for one in command.failures()}
    assert {line: one["error"]["code"] for line, one in failures.items()} == {
        2: "invalid_line",
        5: "invalid_line",
        6: "invalid_line",
        7: "numeric_error",
    }
    assert failures[5]["error"]["message"] == "custom_id: must be unique, but lines 1 and 5 have the same"
    assert failures[7]["custom_id"] == "c2"


def test_failed_rows_are_tried_again_once_their_lines_are_taken_away_and_a_name_stays_taken(
    command: BatchCommand, redis_url: str
) -> None:
    command.write([*rows(3), rows(1)[0]])
    with StandIn(redis_url, verdict=lambda _, job: BROKEN if job.prompt == "c2" else None):
        assert command.run().exit_code == 1
    command.errors.unlink()
    with StandIn(redis_url):
        assert command.run().exit_code == 1
    assert sorted(command.names()) == ["c0", "c1", "c2"]
    (failure,) = command.failures()
    assert failure["error"]["message"] == "custom_id: must be unique, but lines 1 and 4 have the same"


def test_the_same_command_again_does_only_what_is_left(command: BatchCommand, worker: StandIn) -> None:
    command.write([*rows(50), "nonsense"])
    assert command.run().exit_code == 1
    whole, errors = command.output.read_bytes(), command.errors.read_bytes()
    command.output.write_bytes(whole[: len(whole) // 2])  # torn in the middle of a line
    command.errors.write_bytes(errors[:-7])
    worker.answered.clear()
    done = command.run()
    assert "continues, " in done.stdout
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(50))
    assert command.output.read_bytes().startswith(whole[: whole.rindex(b"\n", 0, len(whole) // 2) + 1])
    assert command.errors.read_bytes() == errors
    assert len(worker.answered) == len(set(worker.answered)) < 50
    assert command.run().exit_code == 1
    assert len(command.answers()) == 50


def test_in_order_is_the_order_of_the_input(command: BatchCommand, redis_url: str) -> None:
    command.write(rows(100))

    def verdict(job_id: str, job: object) -> Failure | None:
        is_first_try = "." not in job_id
        return Failure(code="late", message="", retriable=True) if is_first_try and "7" in job_id else None

    with StandIn(redis_url, verdict=verdict):
        assert command.run("--in-order").exit_code == 0
    assert command.names() == [f"c{n}" for n in range(100)]


def test_too_many_failures_stop_it_and_a_higher_limit_goes_on(command: BatchCommand, redis_url: str) -> None:
    command.write(rows(60))
    with StandIn(redis_url, verdict=lambda _, job: BROKEN):
        done = command.run("--max-errors", "3", "--window", "5")
        assert done.exit_code == 1
        assert "stopped: the failed rows are more than 3" in done.stdout
        assert 3 < len(command.failures()) < 20
        assert command.run("--window", "5", "--max-errors", "99").exit_code == 1
    assert len(command.failures()) == 60


def test_a_run_whose_rows_all_fail_stops_early_and_says_why(command: BatchCommand, redis_url: str) -> None:
    command.write([{"prompt": "x", "color": 1}] * 3 + rows(400))
    with StandIn(redis_url, verdict=lambda _, job: BROKEN):
        done = command.run("--window", "10")
        assert done.exit_code == 1
        assert re.search(r"stopped: all of the first \d+ rows failed", done.stdout)
        assert "of them by numeric_error, the first: no numbers" in done.stdout
        assert HOPELESS_ROWS <= len(command.failures()) < 100
        assert command.run("--max-errors", "999").exit_code == 1  # whoever says how many may fail, goes on
    assert len(command.failures()) == 403


def test_some_rows_that_fail_first_stop_nothing(command: BatchCommand, redis_url: str) -> None:
    command.write(rows(80))
    with StandIn(redis_url, verdict=lambda _, job: BROKEN if str(job.prompt) < "c60" else None):
        assert command.run("--in-order", "--window", "80").exit_code == 1
    assert len(command.failures()) + len(command.answers()) == 80


def test_json_events_are_lines_and_the_last_is_the_summary(command: BatchCommand, worker: StandIn) -> None:
    command.write(rows(20))
    events = [json.loads(line) for line in command.run("--json").stdout.splitlines()]
    assert {event["event"] for event in events} == {"notice", "progress", "summary"}
    summary = events[-1]
    assert (summary["event"], summary["state"], summary["num_done"]) == ("summary", "done", 20)
    assert summary["completion_tokens"] == 20 * 16
    assert summary["ttft_p50_s"] == pytest.approx(0.01)


def test_a_table_and_its_columns_make_rows(command: BatchCommand, worker: StandIn, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("n,question\n1,one\n2,two\n")
    done = invoke(
        *("batch", str(tmp_path / "in.csv"), "-o", str(command.output)),
        *("--prompt-column", "question", "--id-column", "n", "--max-tokens", "5"),
        HERD_REDIS_URL=command.url,
    )
    assert done.exit_code == 0, done.output
    assert {name: text.split(":")[0] for name, text in command.texts().items()} == {"1": "one", "2": "two"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("batch",), "needs a file to read and a file to write"),
        (("batch", "none.jsonl", "-o", "out.jsonl"), "none.jsonl: no such file"),
        (("batch", "in.jsonl", "-o", "no/out.jsonl"), "no/out.jsonl cannot be written"),
        (("batch", "in.jsonl", "-o", "foreign.jsonl"), "Fix: choose another -o"),
        (("batch", "in.jsonl", "-o", "./in.jsonl"), "in.jsonl is the input itself. Fix: choose another -o"),
        (("batch", "in.csv", "-o", "out.jsonl"), "in.csv has no column prompt; its columns are: question"),
        (("batch", "in.jsonl", "-o", "out.jsonl", "--set", "top_k"), "--set top_k: must be followed by"),
        (
            ("batch", "in.jsonl", "-o", "out.jsonl", "--temperature", "7"),
            "sampling.temperature: input should",
        ),
        (("batch", "in.jsonl", "-o", "out.jsonl", "--priority", "11"), "priority: input should be"),
        (("batch", "--watch", "nothing"), "no batch nothing"),
        (("batch", "--cancel", "nothing"), "no batch nothing runs, and no job of it waits or runs"),
        (("batch", "--cancel", "no thing"), "run_id: must be"),
        (
            ("batch", "in.jsonl", "-o", "out.xlsx"),
            "out.xlsx: its suffix '.xlsx' names no format. Fix: end it with",
        ),
        (("batch", "in.jsonl", "-o", "foreign.csv"), "Fix: choose another -o"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    command: BatchCommand, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    command.write(rows(1))
    (tmp_path / "foreign.jsonl").write_text("somebody's text\n")
    (tmp_path / "foreign.csv").write_text("somebody's text\n")
    (tmp_path / "in.csv").write_text("question\nx\n")
    done = invoke(*arguments, HERD_REDIS_URL=command.url)
    assert done.exit_code == 2
    assert complaint in done.stderr.splitlines()[-1]


def test_without_a_redis_it_does_not_begin(command: BatchCommand) -> None:
    command.write(rows(1))
    done = replace(command, url="redis://127.0.0.1:1/0").run()
    assert done.exit_code == 2
    assert "cannot be reached" in done.stderr
    assert not command.output.exists()


def test_a_running_batch_is_seen_from_elsewhere(command: BatchCommand, worker: StandIn) -> None:
    command.write(rows(30))
    worker.hold()
    with command.start() as process, Client(command.url) as client:
        wait_until(lambda: any(one.num_under_way == 30 for one in client.batches()), "batch reports")
        shown = invoke("status", HERD_REDIS_URL=command.url).stdout
        assert f"batch {command.run_id} of in.jsonl: 0 of 30 rows, 0 failed, 30 under way" in shown
        watching = ("batch", "--watch", command.run_id, "--json")
        with fork_herd(command.folder, *watching, HERD_REDIS_URL=command.url) as watcher:
            first = json.loads(watcher.stdout.readline())
            worker.go_on()
            rest, _ = watcher.communicate(timeout=30)
        assert process.wait(30) == watcher.returncode == 0
    assert (first["event"], first["state"], first["num_under_way"]) == ("progress", "running", 30)
    assert json.loads(rest.splitlines()[-1])["text"].startswith("done: 30 of 30 rows, 0 failed")
    assert "batch" not in invoke("status", HERD_REDIS_URL=command.url).stdout


@pytest.mark.parametrize(
    ("state", "num_failed", "code"), [("done", 0, 0), ("done", 1, 1), ("left", 0, 1), ("cancelled", 0, 1)]
)
def test_who_watches_is_told_whether_all_rows_are_done(
    command: BatchCommand, state: str, num_failed: int, code: int
) -> None:
    status = BatchStatus(run_id="r", state=state, input_name="in.jsonl", num_rows=2, num_failed=num_failed)
    with Client(command.url) as client:
        client.report_batch(status)
    assert invoke("batch", "--watch", "r", HERD_REDIS_URL=command.url).exit_code == code


def test_a_model_that_nobody_serves_is_named_once(command: BatchCommand, worker: StandIn) -> None:
    mistyped = "taels"
    foreign = [{"prompt": "x", "model": mistyped} for _ in range(3)]
    command.write([*rows(3), *foreign])
    with command.start("--window", "16") as process:
        begins, watch, unserved = (process.stdout.readline() for _ in range(3))
        wait_until(lambda: len(command.answers()) == 3, "the others have their answers")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
    assert f"no worker serves {mistyped}: its rows wait. Did you mean tales? Fix: " in unserved
    run_id = begins.split()[1]
    assert watch == f"  herd batch --watch {run_id}\n"
    assert max(map(len, (begins, f"  HERD_REDIS_URL=redis://127.0.0.1:65535/0 {watch.strip()}"))) <= 80
    assert "no worker serves" not in rest
    assert "3 jobs will continue on the workers" in rest


def test_a_second_command_on_the_same_files_is_refused(command: BatchCommand, worker: StandIn) -> None:
    command.write(rows(5))
    worker.hold()
    with command.start() as process, Client(command.url) as client:
        wait_until(lambda: client.status().pending == 5, "first one runs")
        second = command.run()
        assert second.exit_code == 2
        assert "another process writes it" in second.stderr
        worker.go_on()
        assert process.wait(30) == 0


def test_a_redis_that_goes_and_comes_is_said_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with EmbeddedRedis(appendonly=True) as server:
        command = BatchCommand(tmp_path, server.url)
        command.write(rows(60))
        with command.start("--window", "20") as process, Client(server.url) as client:
            wait_until(lambda: client.status().pending == 20, "window full")
            server.stop()
            assert any("cannot be reached" in line for line in iter(process.stdout.readline, ""))
            server.start()
            with StandIn(server.url):
                output, _ = process.communicate(timeout=50)
    assert process.returncode == 0, output
    assert output.count("cannot be reached") == 0
    assert "Redis is back" in output
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(60))


def test_a_full_redis_is_said_once(command: BatchCommand, worker: StandIn, redis: Redis) -> None:
    command.write(rows(60))
    worker.hold()
    with command.start("--window", "20") as process, Client(command.url) as client:
        wait_until(lambda: client.status().pending == 20, "window full")
        process.send_signal(signal.SIGSTOP)
        client.cancel(f"batch-{command.run_id}-1")  # which makes room for one more
        redis.config_set("maxmemory", 1)
        process.send_signal(signal.SIGCONT)
        try:
            assert any(
                "Redis is full and accepts no jobs" in line for line in iter(process.stdout.readline, "")
            )
        finally:
            redis.config_set("maxmemory", 0)
        worker.go_on()
        output, _ = process.communicate(timeout=50)
    assert process.returncode == 1, output
    assert "Redis is full" not in output
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(1, 60))


def test_what_ended_jobs_keep_is_said_where_it_leaves_no_room(
    command: BatchCommand, worker: StandIn, redis: Redis
) -> None:
    command.write(rows(3))
    redis.hset("herd:default:kept", mapping={"limit": 1, "bytes": 2})
    with command.start() as process:
        assert any("Fix: herd purge --all-ended" in line for line in iter(process.stdout.readline, ""))
        redis.delete("herd:default:kept")
        assert process.wait(30) == 0


def test_the_command_imports_no_torch() -> None:
    code = "import sys, llama_herd.cli.batch.runner; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(modules.split()) & {"torch", "numpy", "gguf", "pyarrow", "celery"}
