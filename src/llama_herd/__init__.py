"""A job-queue batch inference worker: Celery and Redis outside, one Llama a device inside."""
