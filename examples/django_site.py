"""Django under gunicorn's prefork: one client, made before the fork. Needs `herd worker --with-redis`.

    pip install django gunicorn
    gunicorn --chdir examples --preload --workers 2 --threads 8 django_site:application
    curl -d '{"prompt": "Once upon a time"}' localhost:8000/jobs
    curl -N localhost:8000/jobs/ID

A stream holds a thread while it lasts. For many streams take ASGI and AsyncClient, as fastapi_sse.py does.
"""

from collections.abc import Callable, Iterator
from functools import wraps

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from llama_herd import Client, GenerationJob, HerdError, Settings
from llama_herd.http_status import http_headers, http_status

settings.configure(ALLOWED_HOSTS=["localhost", "127.0.0.1"], ROOT_URLCONF=__name__)
django.setup()

herd_settings = Settings.read()
herd = Client(settings=herd_settings)


def with_errors(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """The view, with an answer for each error of the herd."""

    @wraps(view)
    def answer(request: HttpRequest, **of_path: str) -> HttpResponseBase:
        try:
            return view(request, **of_path)
        except HerdError as error:
            headers = http_headers(error)
            return JsonResponse({"error": str(error)}, status=http_status(error), headers=headers)

    return answer


@require_POST
@with_errors
def submit(request: HttpRequest) -> HttpResponseBase:
    job = GenerationJob.parse(request.body, herd_settings)
    key = request.headers.get("Idempotency-Key")
    return JsonResponse({"id": herd.submit(job, idempotency_key=key)}, status=202)


@require_GET
@with_errors
def text(_: HttpRequest, job_id: str) -> HttpResponseBase:
    herd.history(job_id)  # an unknown job is a 404 before the text begins

    def pieces() -> Iterator[str]:
        for event in herd.stream(job_id):
            if event.type == "token":
                yield event.text

    return StreamingHttpResponse(pieces(), content_type="text/plain; charset=utf-8")


urlpatterns = [path("jobs", submit), path("jobs/<job_id>", text)]
application = WSGIHandler()
