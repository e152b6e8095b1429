"""The engine: one thread that computes; it knows neither Celery nor Redis."""
