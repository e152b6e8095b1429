"""Shape: families of models, and how a model's files become their configuration."""
