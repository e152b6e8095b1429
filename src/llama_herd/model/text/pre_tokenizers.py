"""How each family of byte-level vocabularies cuts a text into words, inside which it merges.

A family is a row of `_FAMILIES`, by its names in `tokenizer.ggml.pre`. Patterns are those of the models' own
tokenizer.json, not llama.cpp's approximations. Each one cuts what the one before it left; what lies between
two matches is a word, too. All take time in proportion to a text: where the original does not, an equal that
does stands in its place.
"""

from typing import NamedTuple

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
JAIS2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|(?<![^\S\r\n])\s*[\r\n]+"  # the original looks for lines at every space
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
    r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
MINICPM5 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}")
UFAKZEKA = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EXAONE_MOE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
YOUTU = O200K.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = YOUTU.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
KIMI = r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("/", "")
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPARK = DEEPSEEK3.replace(r"[\r\n]*|\s*[\r\n]+", r"|[\r\n]")
BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+"

PUNCTUATION = r"[\p{P}$+<=>^~|`]+"
CHINESE = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
CJK = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
ASIAN = (
    r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}\x{ff65}-\x{ff9f}"
    r"\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}"
    r"\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+"
)
YOUTU_SIGNS = (
    r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+"
    r"|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}"
    r"\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+"
    r"|[\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
)
CASED_WORD = (  # letters that have a case, as DeepSeek lists them
    r"\s?["
    r"A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}"
    r"\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}"
    r"\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}"
    r"\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}"
    r"\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}"
    r"\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}"
    r"\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}"
    r"\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}"
    r"\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}"
    r"\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}"
    r"\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}"
    r"\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}"
    r"\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}"
    r"]+"
)
FULL_WIDTH_SIGNS = r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+"
LAST_SPACES = r"(?<!\s)\s+$"  # \s+$
# Threes of digits from the right. The originals look at the rest of a number from each of its digits.
THREES = r"(?<!\p{Nd})\p{Nd}{1,3}(?=(?>(?:\p{Nd}{3})*)(?!\p{Nd}))|(?<=\p{Nd})\G\p{Nd}{3}"
THREES_OF_WORD = r"(?<!\d)\d{1,3}(?=(?>(?:\d{3})*)\b)|(?<=\d)\G\d{3}"  # \d{1,3}(?=(?:\d{3})*\b)
CUTS_OF_THREES = r"(?=(?>(?:\d{3}){1,40})(?!\d))"  # (?=(\d{3})+(?!\d)), in numbers of up to 120 digits


class PreTokenizer(NamedTuple):
    """A family's way to cut a text into words, and its rules around that and the merges."""

    names: str
    patterns: tuple[str, ...]
    composes: bool = False  # a text is brought into Unicode's composed form (NFC) first
    takes_whole_words: bool = False  # a word that is a token is that token, whatever merges say
    adds_bos: bool = False  # unless a file says otherwise


_FAMILIES = (
    PreTokenizer(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        (LLAMA3,),
        takes_whole_words=True,
        adds_bos=True,
    ),
    PreTokenizer("dbrx smaug-bpe chatglm-bpe", (LLAMA3,)),
    PreTokenizer("glm4 glm5", (LLAMA3,), takes_whole_words=True),
    PreTokenizer("jais-2", (JAIS2,)),
    PreTokenizer("minicpm5", (r"\p{N}{1,3}", MINICPM5), takes_whole_words=True),
    PreTokenizer("qwen2", (QWEN2,), composes=True),
    PreTokenizer("qwen35", (QWEN35,), composes=True),
    PreTokenizer("deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2 kormo f2llmv2", (QWEN2,)),
    PreTokenizer("laguna", (r"[^\n]+|[\n]+", QWEN2)),
    PreTokenizer("ufakzeka", (UFAKZEKA,)),
    PreTokenizer("bailingmoe bailingmoe2 llada-moe", (BAILING,)),
    PreTokenizer("seed-coder", (SEED,)),
    PreTokenizer("exaone-moe", (EXAONE_MOE,)),
    PreTokenizer("tekken", (TEKKEN,), takes_whole_words=True, adds_bos=True),
    PreTokenizer("gpt-4o llama4 kanana2 talkie minimax-m2", (O200K,)),
    PreTokenizer("granite-embed-multi-97m", (O200K,), takes_whole_words=True),
    PreTokenizer("tiny_aya cohere2moe", (THREES_OF_WORD, O200K)),
    PreTokenizer("youtu", (YOUTU_SIGNS, YOUTU), takes_whole_words=True),
    PreTokenizer("kimi-k2", (KIMI,)),
    PreTokenizer("deepseek-v3 hunyuan-dense joyai-llm hy_v4", (r"\p{N}{1,3}", CHINESE, DEEPSEEK3)),
    PreTokenizer("spark2_5", (r"\p{N}{1,3}", CHINESE, SPARK, r"\p{N}")),
    PreTokenizer("afmoe", (THREES, ASIAN, DEEPSEEK3)),
    PreTokenizer("deepseek-llm", (r"[\r\n]", CASED_WORD, FULL_WIDTH_SIGNS, LAST_SPACES, CJK, r"\p{N}+")),
    PreTokenizer("deepseek-coder", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}")),
    PreTokenizer("mpt olmo", (GPT2,), composes=True),
    PreTokenizer(
        "gpt-2 phi-2 jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert roberta-bpe"
        " jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        (GPT2,),
    ),
    PreTokenizer("command-r", (r"\p{N}", GPT2), composes=True),
    PreTokenizer("starcoder refact smollm codeshell exaone minerva-7b mellum2", (r"\p{N}", GPT2)),
    PreTokenizer("falcon", (PUNCTUATION, GPT2, "[0-9][0-9][0-9]")),
    PreTokenizer("default", (PUNCTUATION.replace("`", ""), GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    PreTokenizer("bloom gpt3-finnish poro-chat", (BLOOM,)),
    PreTokenizer("viking", (BLOOM, r"\p{N}")),
    PreTokenizer("superbpe", (r"\p{N}+", CUTS_OF_THREES)),
    PreTokenizer(
        "chameleon",
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        adds_bos=True,
    ),
)

PRE_TOKENIZERS = {name: family for family in _FAMILIES for name in family.names.split()}
#: All patterns: known to take time in proportion to a text.
PATTERNS = frozenset(pattern for family in _FAMILIES for pattern in family.patterns)
