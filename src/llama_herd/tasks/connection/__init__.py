"""The way to Redis: addresses, certificates, connections, and what its errors mean."""
