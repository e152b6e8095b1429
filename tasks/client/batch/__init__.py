"""Many jobs through a bounded window."""
