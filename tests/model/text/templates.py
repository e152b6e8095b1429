"""Small chat templates, each with what the template of some family of models does."""

from pathlib import Path

_FOLDER = Path(__file__).with_name("templates")

TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.jinja"))}
#: Those that can read content in parts, and those that write what a developer says.
TAKE_PARTS = frozenset({"gemma", "glm_4"})
TAKE_DEVELOPERS = frozenset({"llama_3", "phi_4", "granite", "harmony", "oddities", "plain", "lfm_2", "glm_4"})
#: Those that want null as the content of a turn without any, and those that want a call's arguments as text.
WANT_NULL = frozenset({"deepseek_r1", "lfm_2"})
WANT_TEXT = frozenset({"deepseek_r1"})
#: Those that know no calls, and refuse a turn without content.
WANT_EMPTY = frozenset({"phi_3", "phi_4", "zephyr"})
#: Control tokens of these models.
TOKENS = (
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"),
    *("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "<|system|>", "<|user|>", "<|assistant|>", "<|developer|>", "<|tool|>", "<|end|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    *("<|start|>", "<|message|>", "<|channel|>"),
)
