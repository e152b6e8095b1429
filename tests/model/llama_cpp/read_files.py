"""What llama.cpp makes of GGUF files: a program, since it ends its process at what it cannot stand.

    python read_files.py LIBRARIES < requests > answers

A line of JSON for each file: its path and texts; what comes back has null for a file that is refused.
"""

import ctypes
import json
import sys
from pathlib import Path
from typing import Any


class Params(ctypes.Structure):
    """Settings, passed on as they come; room for those of any version."""

    _fields_ = (("bytes", ctypes.c_uint8 * 512),)


def load(folder: Path) -> Any:
    """The library, with what it stands on."""
    for name in ("libggml-base.so", "libggml.v*.so"):
        (path,) = folder.glob(name)
        ggml = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    (path,) = folder.glob("libllama.v*.so")
    llama = ctypes.CDLL(str(path))
    llama.llama_model_default_params.restype = Params
    llama.llama_model_load_from_file.argtypes = (ctypes.c_char_p, Params)
    llama.llama_model_load_from_file.restype = ctypes.c_void_p
    llama.llama_model_get_vocab.argtypes = (ctypes.c_void_p,)
    llama.llama_model_get_vocab.restype = ctypes.c_void_p
    for name in ("llama_vocab_is_eog", "llama_vocab_is_control"):
        getattr(llama, name).restype = ctypes.c_bool
    return llama


def read(llama: Any, path: str, texts: list[str]) -> dict[str, Any] | None:
    """The facts of one file."""
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        return None
    vocab = ctypes.c_void_p(llama.llama_model_get_vocab(model))
    num_tokens = llama.llama_vocab_n_tokens(vocab)
    ids = (ctypes.c_int32 * 4_096)()
    piece = ctypes.create_string_buffer(4_096)

    def encoded(text: str) -> list[int]:
        content = text.encode()
        num = llama.llama_tokenize(vocab, content, len(content), ids, len(ids), True, False)
        return list(ids[:num])

    def text_of(token_id: int) -> str:
        num = llama.llama_token_to_piece(vocab, token_id, piece, len(piece), 0, False)
        return piece.raw[:num].hex()

    return {
        "bos": llama.llama_vocab_bos(vocab),
        "ends": [i for i in range(num_tokens) if llama.llama_vocab_is_eog(vocab, i)],
        "control": [i for i in range(num_tokens) if llama.llama_vocab_is_control(vocab, i)],
        "ids": [encoded(text) for text in texts],
        "pieces": [text_of(i) for i in range(num_tokens)],
    }


def main() -> None:
    llama = load(Path(sys.argv[1]))
    for line in sys.stdin:
        path, texts = json.loads(line)
        print(json.dumps(read(llama, path, texts)), flush=True)


if __name__ == "__main__":
    main()
