"""What holds on a card: the laws that the CPU tests prove, and what only a card can break."""

import random
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_herd.errors import DeviceError, SettingsError
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from llama_herd.model.shape.pooling import Pooling
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Finished, NewTokens, NewVector, StepOutput
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.device import pin_device
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.gpu.ties import first_real_difference
from tests.model.page_laws import check_prefixes
from tests.model.tiny_embedder import TEXTS, write_gguf
from tests.model.tiny_family import TINY_FAMILIES
from tests.tiny import WIDE, tiny_vocabulary, write_tiny_gguf

pytestmark = pytest.mark.gpu

CARD = "cuda:0"
VOCAB_SIZE = len(tiny_vocabulary())
NUM_TOKENS = 48

#: How far logits may be from float32's on the CPU, as ‖difference‖ / ‖logits‖.
FLOAT32_TOLERANCE = 1e-5
BFLOAT16_TOLERANCE = 0.03
#: Logits this close are a tie: twice what one may be off (docs/decisions/0006).
FLOAT32_TIE, BFLOAT16_TIE = 2e-4, 1.0


def load(path: Path, device: str = CARD, **settings: object) -> LoadedModel:
    """A model in float32, unless `settings` say otherwise."""
    return LoadedModel.load(worker_settings(path, **settings), device)


def worker_settings(path: Path, **settings: object) -> WorkerSettings:
    defaults: dict[str, object] = {
        "dtype": "float32",
        "slots": 16,
        "kv_cache_tokens": 8192,
        "prefill_tokens": 200,
    }
    return WorkerSettings.model_validate({"model": path, "threads": 1, **defaults, **settings})


def prompts(num_prompts: int = 20) -> list[list[int]]:
    """Of 1, 8, 15 ... tokens: some share a page with others, some span several."""
    chance = random.Random(0)
    return [[chance.randrange(3, VOCAB_SIZE) for _ in range(1 + 7 * n)] for n in range(num_prompts)]


def sequence(model: LoadedModel, name: str, prompt: list[int], **fields: Any) -> Sequence:
    sampling = SamplingParams.model_validate({"temperature": 0.0, "max_tokens": NUM_TOKENS, **fields})
    job = GenerationJob(prompt_ids=tuple(prompt), sampling=sampling)
    return model.maker.sequences(name, job, now_ms=0)[0]


def engine_of(model: LoadedModel, outputs: list[StepOutput], **settings: object) -> Engine:
    return model.engine(worker_settings(Path("tiny.gguf"), **settings), outputs.extend)


def generate(model: LoadedModel, texts: Iterable[list[int]]) -> list[list[int]]:
    """The ids that each prompt is continued with, all in one engine."""
    outputs: list[StepOutput] = []
    engine = engine_of(model, outputs)
    sequences = [sequence(model, f"job-{n}", text) for n, text in enumerate(texts)]
    for each in sequences:
        engine.submit(each)
    while engine.has_work:
        engine.step()
    assert {one.finish_reason for one in outputs if isinstance(one, Finished)} == {"length"}
    return [each.ids for each in sequences]


def vectors(model: LoadedModel, prefill_tokens: int) -> Tensor:
    """The vectors of some texts (N, W)."""
    outputs: list[StepOutput] = []
    engine = engine_of(model, outputs, prefill_tokens=prefill_tokens)
    engine.submit(*model.maker.sequences("texts", EmbeddingJob(text_ids=tuple(map(tuple, TEXTS))), now_ms=0))
    while engine.has_work:
        engine.step()
    found = {one.sequence.choice: one.vector for one in outputs if isinstance(one, NewVector)}
    return torch.stack(
        [torch.frombuffer(bytearray(found[n]), dtype=torch.float32) for n in range(len(TEXTS))]
    )


def logits_after(model: LoadedModel, ids: list[int], chunk_tokens: int) -> Tensor:
    """Logits (V,) after the last of `ids`, which come `chunk_tokens` at a time."""
    llama = model.llama
    cache = Cache(llama.config, 8, model.cache.device, model.cache.storage.dtype)
    pages = cache.pages.reserve("alone", len(ids))
    assert pages is not None
    for start in range(0, len(ids), chunk_tokens):
        chunk = Chunk(pages, start, ids[start : start + chunk_tokens], num_logits=1)
        logits = llama.forward(Batch.from_chunks([chunk], cache.device), cache)
    return logits[0].cpu()


def logits_of(model: LoadedModel, ids: list[int]) -> Tensor:
    """The logits after all of `ids` at once."""
    return logits_after(model, ids, len(ids))


def distance(logits: Tensor, exact: Tensor) -> float:
    return float((logits - exact).norm() / exact.norm())


@pytest.fixture
def model(tiny_file: Path) -> LoadedModel:
    return load(tiny_file)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", FLOAT32_TIE), ("bfloat16", BFLOAT16_TIE)])
@pytest.mark.parametrize("triton", ["auto", "off"])
def test_greedy_ids_equal_the_cpus_in_float32_but_for_ties(
    tiny_file: Path, dtype: str, tolerance: float, triton: str
) -> None:
    exact = load(tiny_file, "cpu")
    ours = generate(load(tiny_file, dtype=dtype, triton=triton), prompts())
    difference = first_real_difference(
        ours, generate(exact, prompts()), prompts(), partial(logits_of, exact), tolerance
    )
    assert not difference


def test_a_batch_gives_each_request_the_ids_that_it_gets_alone_but_for_ties(
    tiny_file: Path, model: LoadedModel
) -> None:
    """Products of other shapes add in another order."""
    alone = [generate(model, [prompt])[0] for prompt in prompts()]
    judge = partial(logits_of, load(tiny_file, "cpu"))
    difference = first_real_difference(generate(model, prompts()), alone, prompts(), judge, FLOAT32_TIE)
    assert not difference


def test_deterministic_mode_is_refused_by_name(tiny_file: Path) -> None:
    with pytest.raises(SettingsError, match=r"HERD_DETERMINISTIC=true needs HERD_DEVICE=cpu"):
        load(tiny_file, deterministic=True)


def test_shared_pages_give_the_ids_that_a_prompt_gets_when_it_is_computed(
    tiny_file: Path, model: LoadedModel
) -> None:
    """On a card a found prefix is not copied but read where it lies."""
    prefix = prompts()[-1]
    texts = [[*prefix, *prompt] for prompt in prompts()]
    assert generate(model, texts) == generate(load(tiny_file, prefix_cache=False), texts)
    prefixes = model.cache.prefixes
    assert prefixes.num_found_tokens > prefixes.num_queried_tokens / 2


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
def test_cached_tokens_give_the_logits_of_a_full_prefill(model: LoadedModel, chunk_tokens: int) -> None:
    ids = prompts(30)[-1]
    whole = logits_after(model, ids, len(ids))
    assert distance(logits_after(model, ids, chunk_tokens), whole) < FLOAT32_TOLERANCE


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", FLOAT32_TOLERANCE), ("bfloat16", BFLOAT16_TOLERANCE)]
)
def test_logits_stay_near_the_cpus_in_float32(tiny_file: Path, dtype: str, tolerance: float) -> None:
    ids = prompts(30)[-1]
    exact = logits_after(load(tiny_file, "cpu"), ids, len(ids))
    assert distance(logits_after(load(tiny_file, dtype=dtype), ids, len(ids)), exact) < tolerance


@pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN], ids=str)
def test_texts_get_the_vectors_that_the_cpu_makes(tmp_path: Path, pooling: Pooling) -> None:
    """Also where a step has only parts of them, of which no token may count."""
    family = TINY_FAMILIES["qwen3"]
    path = write_gguf(family, family.model(), tmp_path / "tiny.gguf", pooling)
    exact = vectors(load(path, "cpu"), prefill_tokens=200)
    for prefill_tokens in (1, 200):
        assert distance(vectors(load(path), prefill_tokens), exact) < FLOAT32_TOLERANCE


def test_auto_is_bfloat16(tiny_file: Path) -> None:
    assert load(tiny_file, dtype="auto").plan.dtype == "bfloat16"


def test_pages_are_conserved_when_requests_end_come_and_are_cancelled(model: LoadedModel) -> None:
    engine = engine_of(model, [], slots=4)
    chance = random.Random(1)
    sequences = [sequence(model, f"job-{n}", prompt) for n, prompt in enumerate(prompts())]
    for each in sequences:
        engine.submit(each)
    while engine.has_work:
        if chance.random() < 0.1:
            engine.abort([chance.choice(sequences).info], "cancelled")
        engine.step()
        check_prefixes(model.cache.prefixes)
    assert model.cache.pages.num_held == 0


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.9}, {"repetition_penalty": 1.2}],
    ids=str,
)
def test_a_decode_step_waits_for_the_card_once_however_many_rows_it_has(
    model: LoadedModel, fields: dict[str, Any]
) -> None:
    """Where steps go one by one; CUDA does not count the events that steps which overlap wait for."""
    outputs: list[StepOutput] = []
    engine = engine_of(model, outputs, graphs="off")
    for n, prompt in enumerate(prompts(16)):
        engine.submit(sequence(model, f"job-{n}", prompt, **fields))
    while len({one.sequence for one in outputs if isinstance(one, NewTokens)}) < 16:
        engine.step()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([wait for wait in waits if "called a synchronizing" in str(wait.message)]) == 1


def test_an_out_of_memory_is_the_error_of_the_request_that_needs_the_memory(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "wide.gguf", eos=False, ffn_size=8192, context_length=20_000)
    # Captured steps have all of their memory from the start.
    settings: dict[str, object] = {"kv_cache_tokens": 32_768, "prefill_tokens": 20_000, "graphs": "off"}
    model = load(path, CARD, **settings)
    outputs: list[StepOutput] = []
    engine = engine_of(model, outputs, **settings)
    small = [sequence(model, f"small-{n}", prompt) for n, prompt in enumerate(prompts(4))]
    large = sequence(model, "large", [7] * 16_000)
    room = torch.cuda.memory_reserved() + (256 << 20)  # its gate and up values alone take a GiB
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        for each in (*small, large):
            engine.submit(each)
        while engine.has_work:
            engine.step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    reasons = {one.sequence: one.finish_reason for one in outputs if isinstance(one, Finished)}
    assert reasons == {**dict.fromkeys([one.info for one in small], "length"), large.info: "error"}
    check_prefixes(model.cache.prefixes)


def test_a_wrong_index_lists_the_cards() -> None:
    with pytest.raises(DeviceError, match=torch.cuda.get_device_name(0)):
        pin_device("cuda:99")


def test_a_cache_that_does_not_fit_is_refused_with_both_numbers(tiny_file: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"HERD_KV_CACHE_TOKENS=\d+ takes [\d,]+ bytes, but .* [\d,]+ .*free"
    ):
        load(tiny_file, kv_cache_tokens=1 << 40)


def test_a_cache_of_no_stated_size_leaves_a_tenth_of_what_is_free(tiny_file: Path) -> None:
    free_bytes, _ = torch.cuda.mem_get_info()
    model = load(tiny_file, kv_cache_tokens=0, slots=1024)
    assert 0 < model.cache.storage.nbytes <= 0.9 * free_bytes


@pytest.mark.parametrize("form", ["dense", "quantized"])
@pytest.mark.parametrize("type", [type.name for type in SUPPORTED_TYPES])
def test_weights_that_are_dequantised_on_the_card_are_the_cpus_bit_for_bit(
    tmp_path: Path, type: str, form: str
) -> None:
    path, ids = write_tiny_gguf(tmp_path / "tiny.gguf", type=type, **WIDE), torch.arange(300)
    ours, exact = load(path, weights=form).llama, load(path, "cpu").llama
    assert ours.embedding.rows(ids.cuda()).cpu().equal(exact.embedding.rows(ids))
