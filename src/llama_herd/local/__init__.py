"""A herd on this machine: a redis-server, workers, and a person's terminal."""
