"""What Prometheus reads of a worker: its own figures, and what waits in the ledger."""
