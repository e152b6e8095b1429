"""The ledger in Redis. No other package names a Redis key."""
