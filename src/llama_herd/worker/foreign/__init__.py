"""Engines that are servers of their own: unmodified, driven by token ids."""
