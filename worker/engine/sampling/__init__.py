"""Logits to tokens."""
