"""What is said of a model file without running it: inspect and tokenize."""

import json
from pathlib import Path

import pytest

from tests.tiny import write_tiny_gguf
from tests.worker.herd_command import invoke


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantised model that shares its embedding, and has a chat template with a control character."""
    path = tmp_path_factory.mktemp("model") / "chatty.gguf"
    return write_tiny_gguf(path, type="Q8_0", tied=True, chat_template="\x1b[2J{{ messages }}")


def test_inspect_counts_tensors_and_memory(chatty: Path) -> None:
    settings = {"HERD_SLOTS": "2", "HERD_KV_CACHE_TOKENS": "1000", "HERD_DTYPE": "float32"}
    done = invoke("inspect", str(chatty), "--json", **settings)
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["shape"]["num_layers"] == 2
    assert found["header"]["general.architecture"] == "llama"
    assert found["header"]["tokenizer.ggml.tokens"] == f"{found['shape']['vocab_size']} values"
    matrices, vectors = found["tensors"]
    assert (matrices["type"], matrices["num_tensors"]) == ("Q8_0", 1 + 2 * 7)
    assert (vectors["type"], vectors["num_tensors"]) == ("F32", 1 + 2 * 2)
    assert vectors["num_bytes"] == 4 * vectors["num_parameters"] == 4 * 64 * 5
    assert matrices["num_bytes"] == matrices["num_parameters"] // 32 * 34
    assert found["tokenizer"]["chat_templates"] == ["default"]
    memory = found["memory"]
    assert memory["weight_bytes"] == 4 * (matrices["num_parameters"] + vectors["num_parameters"])
    assert memory["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4  # K and V, layers, heads, head_dim, float32
    assert memory["kv_cache_tokens"] == 1024
    assert memory["kv_cache_bytes"] == memory["parts"]["KV cache"] == 1024 * memory["kv_bytes_per_token"]
    assert memory["num_bytes"] == sum(memory["parts"].values()) < memory["free_bytes"]
    shown = invoke("inspect", str(chatty)).stdout
    assert all(f"\n  {name} " in shown for name in memory["parts"])


def test_inspect_is_harmless_on_a_terminal(chatty: Path) -> None:
    done = invoke("inspect", str(chatty))
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "  chat template        yes" in done.stdout.splitlines()


def test_tokenize_shows_ids_and_pieces(tiny_path: Path) -> None:
    def tokens(text: str, stdin: str = "") -> dict[str, list[object]]:
        done = invoke("tokenize", text, "--json", "--model", str(tiny_path), stdin=stdin)
        assert (done.exit_code, done.stderr) == (0, "")
        found: dict[str, list[object]] = json.loads(done.stdout)
        return found

    found = tokens("the llama")
    assert found["pieces"] == ["<s>", " the", " llama"]
    assert found["ids"][0] == 1
    assert tokens("-", stdin="the llama\n") == found
    assert tokens("é")["pieces"][-2:] == ["\\xc3", "\\xa9"]


def test_tokenize_prints_a_token_a_line(tiny_path: Path) -> None:
    shown = invoke("tokenize", "a\n\x1b", "--model", str(tiny_path)).stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in shown] == ["'<s>'", "' a'", r"'\n'", r"'\x1b'"]


@pytest.mark.parametrize("command", [("inspect",), ("tokenize", "a", "--model")])
def test_a_file_that_is_no_model_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    done = invoke(*command, str(tmp_path / "none.gguf"))
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "none.gguf: no such file" in line
