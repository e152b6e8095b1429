"""What is said of a model file without running it: inspect and tokenize."""

import json
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType
from tokenizers.pre_tokenizers import ByteLevel

from tests.cli.herd_command import invoke
from tests.tiny import write_tiny_gguf


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantised model that shares its embedding, and has a chat template with a control character."""
    path = tmp_path_factory.mktemp("model") / "chatty.gguf"
    return write_tiny_gguf(path, type="Q8_0", tied=True, chat_template="\x1b[2J{{ messages }}")


@pytest.mark.long
def test_inspect_counts_tensors_and_memory(chatty: Path) -> None:
    settings = {
        "HERD_SLOTS": "2",
        "HERD_KV_CACHE_TOKENS": "1000",
        "HERD_DTYPE": "float32",
        "HERD_WEIGHTS": "dense",
    }
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
    assert "  chat template        default" in done.stdout.splitlines()


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


def test_tokenize_takes_a_vocabulary_alone(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*ByteLevel.alphabet(), "<bos>", "ab"])
    writer.add_token_types([TokenType.NORMAL] * 256 + [TokenType.CONTROL, TokenType.NORMAL])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_add_bos_token(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    for options, expected in (((), ["<bos>", "ab"]), (("--no-bos",), ["ab"])):
        done = invoke("tokenize", "ab", "--json", *options, "--model", str(path))
        assert (done.exit_code, json.loads(done.stdout)["pieces"]) == (0, expected)


def test_tokenize_prints_a_token_a_line(tiny_path: Path) -> None:
    shown = invoke("tokenize", "a\n\x1b", "--model", str(tiny_path)).stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in shown] == ["'<s>'", "' a'", r"'\n'", r"'\x1b'"]


TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
CHAT = "{{ bos_token }}" + TURNS + "{{ tools[0].name if tools }}"


@pytest.mark.long
def test_tokenize_shows_what_a_template_makes_of_a_chat(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "chat.gguf", chat_template=CHAT)
    job = {"messages": [{"role": "user", "content": "the </s>é"}], "tools": [{"name": "\x1bf"}]}
    (tmp_path / "chat.json").write_text(json.dumps(job))
    options = ("tokenize", "--model", str(model), "--chat")
    found = json.loads(invoke(*options, str(tmp_path / "chat.json"), "--json").stdout)
    assert (found["ids"][0], found["ids"].count(2)) == (1, 0)
    assert found["text"] == "<s> user: the </s>é\x1bf"
    shown = invoke(*options, "-", stdin=json.dumps(job["messages"])).stdout.splitlines()
    assert shown[:3] == ["<s> user: the </s>é", "", "      1  '<s>'"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"prompt": "x"}', "has no messages"),
        ('[{"role": "nobody", "content": "x"}]', "messages.0.role: input should be"),
        ('[{"role": "user", "content": "x"}]', "this model has no chat template"),
    ],
)
def test_a_chat_that_cannot_be_shown_is_one_line(
    tiny_path: Path, tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "chat.json").write_text(content)
    done = invoke("tokenize", "--model", str(tiny_path), "--chat", str(tmp_path / "chat.json"))
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert complaint in line


@pytest.mark.parametrize("arguments", [(), ("a", "--chat", "x"), ("--chat", "none.json")])
def test_tokenize_takes_one_text_or_one_file(tiny_path: Path, arguments: tuple[str, ...]) -> None:
    done = invoke("tokenize", *arguments, "--model", str(tiny_path))
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("command", [("inspect",), ("tokenize", "a", "--model")])
def test_a_file_that_is_no_model_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    done = invoke(*command, str(tmp_path / "none.gguf"))
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "none.gguf: no such file" in line
