"""Celery and kombu as a worker uses them: consumer, channels, delivered messages, results and revokes."""
