"""The life of a claimed job: who owns it, and what is said of it."""
