"""What tests of several parts begin with."""

import pytest
from celery import Celery

from tests.worker.jobs.celery_app import app_of_worker


@pytest.fixture
def worker_app(redis_url: str) -> Celery:
    return app_of_worker(redis_url)
