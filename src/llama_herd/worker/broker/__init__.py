"""What we change in Celery and kombu."""
