"""The ledger in Redis: the only room that names a key."""
