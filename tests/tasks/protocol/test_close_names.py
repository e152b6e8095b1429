"""Names that a mistyped one may have been meant to be."""

from llama_herd.tasks.protocol.close_names import MAX_KNOWN, MAX_NAME_CHARS, close_names, did_you_mean

MODELS = ("Llama-3.1-8B-Instruct", "qwen2.5-7b", "qwen2.5-7b-instruct", "tales")


def test_the_likest_names_come_first_and_none_that_is_not_alike() -> None:
    assert close_names("taels", MODELS) == ["tales"]
    assert close_names("qwen2.5-7", MODELS, most=3) == ["qwen2.5-7b"]
    assert close_names("qwen2.5-7", MODELS, most=3, likeness=0.6) == ["qwen2.5-7b", "qwen2.5-7b-instruct"]
    assert close_names("gpt-4o-mini", MODELS) == []
    assert close_names("tales", ()) == []


def test_case_and_dashes_are_no_difference() -> None:
    assert close_names("llama_3.1_8b_instruct", MODELS) == ["Llama-3.1-8B-Instruct"]


def test_it_is_a_question_or_nothing() -> None:
    assert did_you_mean(["a"]) == ". Did you mean a?"
    assert did_you_mean(["a", "b"]) == ". Did you mean a or b?"
    assert did_you_mean([]) == ""


def test_long_names_and_the_last_of_many_are_not_compared() -> None:
    name = "a" * MAX_NAME_CHARS
    assert close_names(name, [name]) == [name]
    assert close_names(f"{name}a", [name]) == close_names(name, [f"{name}a"]) == []
    others = [f"b{number}" for number in range(MAX_KNOWN - 1)]
    assert close_names("tales", [*others, "tales"]) == ["tales"]
    assert close_names("tales", [*others, "b", "tales"]) == []
