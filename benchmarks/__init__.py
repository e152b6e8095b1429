"""Measurements, each with its conditions; run as `python -m benchmarks.NAME`."""
