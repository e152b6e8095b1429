"""Batches: many jobs, with a limited number under way at a time."""
