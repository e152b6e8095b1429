"""Text to token ids and back: tokenizers, vocabularies, chat templates and their sandbox."""
