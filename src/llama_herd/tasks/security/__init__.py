"""Users of Redis and their rights."""
