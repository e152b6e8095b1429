"""Our Celery app as a worker has it."""

from celery import Celery

from llama_herd.tasks.app import make_app
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.celery_config import insist_on_results


def app_of_worker(redis_url: str) -> Celery:
    app = make_app(Settings(redis_url=redis_url))
    insist_on_results(app)
    app.loader.import_default_modules()
    app.finalize()
    return app
