"""Forms of outputs: judged in a helper, built as grammars, kept for others, followed by constraints."""
