"""What a model's files say of its shape: families, and what of a file becomes their configuration."""
