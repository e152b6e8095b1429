"""Law: steps that are one native call say of each job what forwards and torch's draws say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llama_herd.model.batch import Batch
from llama_herd.model.native_decoder import NativeDecoder
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.sampling.row import NO_TOKEN
from llama_herd.worker.engine.sampling.sampler import likeliest
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import WIDE, write_tiny_gguf
from tests.worker.engine_run import Collector, finish, with_empty_cache
from tests.worker.ways_to_draw import MODES, Said, jobs, logprobs, said


@pytest.fixture(scope="module")
def settings(
    tiny_settings: WorkerSettings, kernels_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> WorkerSettings:
    """Of a model whose matrices native kernels multiply."""
    model = write_tiny_gguf(tmp_path_factory.mktemp("model") / "blocks.gguf", type="Q8_0", **WIDE)
    changes = {"slots": 6, "kv_cache_tokens": 4096, "context_tokens": 256, "threads": 2}
    return tiny_settings.model_copy(update={"model": model, "kernels_dir": str(kernels_folder), **changes})


@pytest.fixture(scope="module")
def loaded(settings: WorkerSettings) -> LoadedModel:
    model = LoadedModel.load(settings, "cpu")
    if model.llama.native is None:
        pytest.skip("no kernels for this processor")
    return model


class Heard(NamedTuple):
    """What was said of all jobs, and how many steps were computed in which way."""

    said: Said
    logprobs: dict[str, list[float]]
    num_decoded: int
    num_forwards: int


Run = Callable[..., Heard]


@pytest.fixture
def run(loaded: LoadedModel, settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run jobs of some modes, their decoding steps in one native call each or by forwards."""

    def run(*modes: str, natively: bool, **changes: Any) -> Heard:
        model, sink, calls = with_empty_cache(loaded), Collector(), list[str]()

        def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*args: Any) -> Any:
                calls.append(name)
                return call(*args)

            return noted

        monkeypatch.setattr(NativeDecoder, "__call__", counted("decoded", NativeDecoder.__call__))
        monkeypatch.setattr(Batch, "from_chunks", counted("forward", Batch.from_chunks))
        engine = model.engine(settings.model_copy(update=changes), sink)
        runner = engine.runner
        assert isinstance(runner, ModelRunner)
        if not natively:
            monkeypatch.setattr(runner, "_decoder", None)
        engine.submit(*jobs(model, *modes))
        finish(engine)
        monkeypatch.undo()
        return Heard(said(sink), logprobs(sink), calls.count("decoded"), calls.count("forward"))

    return run


@pytest.mark.parametrize("mode", [*MODES, "all"])
def test_they_say_the_same(run: Run, mode: str) -> None:
    modes = tuple(MODES) if mode == "all" else (mode,)
    natively, by_forwards = run(*modes, natively=True), run(*modes, natively=False)
    assert natively.said == by_forwards.said
    assert natively.logprobs == by_forwards.logprobs
    assert by_forwards.num_decoded == 0
    assert natively.num_decoded + natively.num_forwards == by_forwards.num_forwards
    if mode != "a prompt alone":  # it has no step that decodes
        assert natively.num_decoded > natively.num_forwards


def test_a_token_of_a_prompt_is_no_row_that_decodes(run: Run) -> None:
    """Beside streams these prompts come token by token."""
    natively, by_forwards = (run(*MODES, natively=natively, prefill_tokens=1) for natively in (True, False))
    assert natively.said == by_forwards.said


def test_more_rows_than_one_call_takes_are_computed_by_forwards(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_herd.worker.engine.model_runner.FEW_TOKENS", 2)
    natively = run(*MODES, natively=True)
    assert natively.said == run(*MODES, natively=False).said
    assert 0 < natively.num_decoded < natively.num_forwards


def test_what_is_no_number_is_no_token() -> None:
    found = likeliest([1.0, float("inf"), float("nan"), float("-inf")], [7, 8, 9, 10])
    assert [token.token_id for token in found] == [7, NO_TOKEN, NO_TOKEN, NO_TOKEN]
