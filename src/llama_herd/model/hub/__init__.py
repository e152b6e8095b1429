"""Models of Hugging Face: how they are named, which of their files are taken, and how these come here."""
