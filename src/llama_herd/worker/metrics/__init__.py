"""Prometheus metrics of a worker: its own figures, and the counts of its tenants' ledgers."""
