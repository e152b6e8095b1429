"""Our Celery app as a worker has it."""

from celery import Celery

from llama_herd.tasks.app import make_app
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.celery_config import insist_on_results


def app_of_worker(redis_url: str, result_url: str = "") -> Celery:
    settings = Settings(redis_url=redis_url, result_url=result_url)
    app = make_app(settings)
    insist_on_results(app, settings)
    app.loader.import_default_modules()
    app.finalize()
    return app
