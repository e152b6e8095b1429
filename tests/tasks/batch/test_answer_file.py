"""The output's files: whole lines only, what they say is done, and which run they belong to."""

from dataclasses import replace
from pathlib import Path

import pytest

from llama_herd.cli.batch.files import BatchFiles, BatchPlan, RunFile
from llama_herd.errors import BadInput
from llama_herd.tasks.batch.answers import answered_rows, line_id
from llama_herd.tasks.batch.row_options import RowOptions
from llama_herd.tasks.client.batch.batch_progress import DoneRows
from llama_herd.tasks.storage.line_file import CannotWrite, LineFile
from tests.full_disk import room_for


def answer(line: int, run_id: str = "abc") -> bytes:
    return b'{"id":"%s","text":"..."}\n' % line_id(run_id, line).encode()


def rows_in(file: LineFile) -> list[int]:
    return [row for row, _ in answered_rows(file.path, "abc")]


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    whole = answer(1) + answer(2)
    for end in range(len(answer(1)), len(whole)):
        path = tmp_path / f"{end}.jsonl"
        path.write_bytes(whole[:end])
        with LineFile(path) as file:
            file.repair()
            assert rows_in(file) == [1]
            file.append([answer(2), answer(3)])
        assert path.read_bytes() == whole + answer(3)


def test_a_torn_line_longer_than_a_chunk_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(answer(1) + b"x" * 300_000)
    with LineFile(path) as file:
        file.repair()
    assert path.read_bytes() == answer(1)
    path.write_bytes(b"x" * 300_000)
    with LineFile(path) as file:
        file.repair()
    assert path.read_bytes() == b""


def test_only_lines_of_the_run_count_as_done(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(answer(1) + answer(2, "other") + b'{"id":"x"}\n\n' + answer(17))
    with LineFile(path) as file:
        assert rows_in(file) == [1, 17]


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    with (
        LineFile(tmp_path / "out.jsonl"),
        pytest.raises(BadInput, match="another process writes it"),
        LineFile(tmp_path / "out.jsonl"),
    ):
        pass


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written: No such file"), LineFile(tmp_path / "a" / "b"):
        pass


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with LineFile(path) as file:
        file.append([answer(1)])
        with (
            room_for(len(answer(1)) + 10),
            pytest.raises(CannotWrite, match="cannot be written: File too large"),
        ):
            file.append([answer(2)])
        assert path.read_bytes() == answer(1)
        file.append([answer(2)])
    assert path.read_bytes() == answer(1) + answer(2)


def test_done_lines_are_a_set_of_numbers() -> None:
    done = DoneRows()
    for row in (1, 9, 9, 1_000_000):
        done.add(row)
    assert len(done) == 3
    assert [line for line in (0, 1, 2, 8, 9, 10, 999_999, 1_000_000, 1_000_001) if line in done] == [
        1,
        9,
        1_000_000,
    ]


@pytest.fixture
def plan(tmp_path: Path) -> BatchPlan:
    (tmp_path / "in.jsonl").write_text("x")
    return BatchPlan(str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl")


def test_a_run_is_known_again_by_input_and_options(plan: BatchPlan) -> None:
    run = RunFile.open(plan)
    assert RunFile.open(plan) == run
    plan.output.write_bytes(answer(1, run.run_id))
    assert RunFile.open(plan) == run
    with pytest.raises(BadInput, match="begun with other options: in_order, seed"):
        RunFile.open(replace(plan, options=RowOptions(seed=7), in_order=True))
    Path(plan.input_name).write_text("xy")
    with pytest.raises(BadInput, match=r"begun with another content of in\.jsonl\. Fix: give the same"):
        RunFile.open(plan)
    plan.output.unlink()
    assert RunFile.open(plan).run_id != run.run_id


def test_the_same_rows_in_another_order_are_another_input(plan: BatchPlan) -> None:
    Path(plan.input_name).write_text('{"prompt": "fox"}\n{"prompt": "hen"}\n')
    run = RunFile.open(plan)
    plan.output.write_bytes(answer(1, run.run_id))
    Path(plan.input_name).write_text('{"prompt": "hen"}\n{"prompt": "fox"}\n')
    with pytest.raises(BadInput, match=r"begun with another content of in\.jsonl\. Fix: give the same"):
        RunFile.open(plan)


def test_rows_that_name_no_model_are_all_of_one(plan: BatchPlan) -> None:
    begun, other = replace(plan, default_model="fox"), replace(plan, default_model="hen")
    run = RunFile.open(begun)
    plan.output.write_bytes(answer(1, run.run_id))
    assert RunFile.open(begun) == run
    with pytest.raises(BadInput, match="begun with fox for rows that name no model, and now it is hen"):
        RunFile.open(other)


def test_another_default_is_nothing_to_rows_that_are_all_given_a_model(plan: BatchPlan) -> None:
    begun = replace(plan, options=RowOptions(model="cat"), default_model="fox")
    run = RunFile.open(begun)
    plan.output.write_bytes(answer(1, run.run_id))
    assert RunFile.open(replace(begun, default_model="hen")) == run


@pytest.mark.parametrize("run", ["", "{}", "nonsense"])
@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.errors.jsonl"])
def test_answers_without_their_run_are_left_alone_to_the_last_byte(
    plan: BatchPlan, run: str, name: str
) -> None:
    plan.run_file.write_text(run)
    foreign = plan.output.with_name(name)
    foreign.write_text("no line feed at its end")
    with pytest.raises(BadInput, match=r"out.jsonl.run.*Fix: choose another -o"), BatchFiles(plan):
        pass
    assert foreign.read_text() == "no line feed at its end"


def test_the_content_of_standard_input_is_not_known(plan: BatchPlan) -> None:
    assert RunFile.open(replace(plan, input_name="-")).input_sha256 is None


@pytest.mark.parametrize("name", ["-", "out.jsonl.gz"])
def test_an_output_that_takes_no_lines_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="must be a plain file"):
        BatchPlan("in.jsonl", Path(name))


def test_a_device_is_no_output() -> None:
    with pytest.raises(BadInput, match="/dev/full is not a plain file"), LineFile(Path("/dev/full")):
        pass
