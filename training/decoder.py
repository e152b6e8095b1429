"""Greedy decoding of many prompts in one batch, by the package's own Llama."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import pages_for
from llama_herd.model.text.tokenizer import Tokenizer

MAX_TOKENS = 256


@dataclass(frozen=True)
class Completion:
    """What the model made of a prompt."""

    prompt: str
    text: str
    num_tokens: int
    ended: bool  # by EOS, before MAX_TOKENS

    @property
    def document(self) -> str:
        return self.prompt + self.text


@dataclass
class Row:
    """One sequence of the batch: the prompt's ids, and after them what was written."""

    prompt: str
    pages: tuple[int, ...]
    ids: list[int]
    num_prompt_tokens: int
    num_cached: int = 0

    def next_chunk(self) -> Chunk:
        """What the cache does not hold yet."""
        chunk = Chunk(self.pages, self.num_cached, self.ids[self.num_cached :], num_logits=1)
        self.num_cached = len(self.ids)
        return chunk

    @property
    def written(self) -> list[int]:
        return self.ids[self.num_prompt_tokens :]


class Decoder:
    """A model file, ready to complete prompts."""

    def __init__(self, path: Path) -> None:
        with GGUFModel.open(path) as file:
            self.llama = Llama.load(file)
            self.tokenizer = Tokenizer.from_metadata(file.metadata)

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        """The completions at temperature 0, each up to EOS or MAX_TOKENS."""
        encoded = {prompt: self.tokenizer.encode(prompt) for prompt in prompts}
        num_pages = sum(pages_for(len(ids) + MAX_TOKENS) for ids in encoded.values())
        cache = Cache(self.llama.config, num_pages)
        rows = [self._row(prompt, ids, cache) for prompt, ids in encoded.items()]
        running = rows
        for _ in range(MAX_TOKENS):
            logits = self.llama.forward(Batch.from_chunks([row.next_chunk() for row in running]), cache)
            for row, token in zip(running, logits.argmax(dim=-1).tolist(), strict=True):
                row.ids.append(token)
            running = [row for row in running if row.ids[-1] not in self.tokenizer.eos_ids]
            if not running:
                break
        return [self._completion(row) for row in rows]

    def _row(self, prompt: str, ids: list[int], cache: Cache) -> Row:
        pages = cache.pages.reserve(prompt, len(ids) + MAX_TOKENS)
        assert pages is not None, "the cache was made for these rows"
        return Row(prompt, pages, ids, len(ids))

    def _completion(self, row: Row) -> Completion:
        ended = row.ids[-1] in self.tokenizer.eos_ids
        return Completion(row.prompt, self.tokenizer.decode(row.written), len(row.written), ended)
