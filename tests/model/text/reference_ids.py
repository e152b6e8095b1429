"""Make reference_ids.json.gz, the ids that llama.cpp gives texts with every name of `tokenizer.ggml.pre`.

    PYTHONPATH=src:. python -m tests.model.text.reference_ids

needs llama-cpp-python beside the test dependencies; the tests need the file alone. One small vocabulary has
all names. Its merges go across words, so wherever a text is cut otherwise its ids are others.

Where llama.cpp departs from a model's own tokenizer.json (it does not compose, and tells no capitals beyond
ASCII apart), the ids are our own, of Hugging Face's engine with that file's pattern: look at what is printed.
"""

import gzip
import json
import random
import tempfile
import zlib
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType
from llama_cpp import Llama
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from llama_herd.model.files.gguf import GGUFFile
from llama_herd.model.text.pre_tokenizers import PRE_TOKENIZERS
from llama_herd.model.text.tokenizer import Tokenizer
from tests.model.corpus import cut_text

PATH = Path(__file__).with_name("reference_ids.json.gz")
NUM_TEXTS = 1_000
NUM_TOKENS = 3_000


def main() -> None:
    rng = random.Random(0)
    texts = [cut_text(rng) for _ in range(NUM_TEXTS)]
    tokens, merges = train(texts)
    names: dict[str, Any] = {}
    for name in PRE_TOKENIZERS:
        theirs, ours = checksums(name, texts, tokens, merges)
        others = {index: own for index, (own, ref) in enumerate(zip(ours, theirs, strict=True)) if own != ref}
        names[name] = {"llama.cpp": "".join(theirs), "model's own": others}
        print(f"{name:24} llama.cpp differs from the model's own tokenizer on {len(others)} of {NUM_TEXTS}")
    content = {"texts": texts, "tokens": tokens, "merges": merges, "names": names}
    PATH.write_bytes(gzip.compress(json.dumps(content, ensure_ascii=False).encode(), 9, mtime=0))


def train(texts: list[str]) -> tuple[list[str], list[str]]:
    """Tokens and merges of a vocabulary that knows no words."""
    engine = Engine(BPE())
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = BpeTrainer(
        vocab_size=NUM_TOKENS, initial_alphabet=ByteLevel.alphabet(), show_progress=False, max_token_length=12
    )
    engine.train_from_iterator(texts, trainer)
    model = json.loads(engine.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]]


def checksum(ids: list[int]) -> str:
    return f"{zlib.crc32(json.dumps(ids).encode()):08x}"


def checksums(
    name: str, texts: list[str], tokens: list[str], merges: list[str]
) -> tuple[list[str], list[str]]:
    """Of llama.cpp's ids of each text, and of ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write(path, name, tokens, merges)
        llama = Llama(str(path), vocab_only=True, verbose=False)
        theirs = [llama.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
        with GGUFFile.open(path) as file:
            tokenizer = Tokenizer.from_metadata(file.metadata)
        ours = [tokenizer.encode(text, add_bos=False) for text in texts]
    return list(map(checksum, theirs)), list(map(checksum, ours))


def write(path: Path, name: str, tokens: list[str], merges: list[str]) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list([*tokens, "<begin>", "<finish>"])
    writer.add_token_types([TokenType.NORMAL] * len(tokens) + [TokenType.CONTROL] * 2)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens))
    writer.add_eos_token_id(len(tokens) + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


if __name__ == "__main__":
    main()
