"""How the tokens of a step are cut into spans that attend."""

#: Most tokens of a chunk that attend at once. It bounds masks and scores, whatever the prompt's length.
SPAN_TOKENS = 512

#: A span of so many tokens and fewer is short.
SHORT_TOKENS = 4

#: Most keys, and most scores of a head, of the spans that attend as one group: it bounds what gathering them
#: takes, however many there are. One span alone may have more.
GROUP_KEYS = 1 << 15
GROUP_SCORES = 1 << 22
