"""Which pages of other origins may call, as browsers ask it before they send a request."""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from llama_herd.tasks.gateway.problem import Problem


class CrossOrigin(CORSMiddleware):
    """Starlette's middleware, whose refusals are errors in the shape of all others."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        why = bytes(answer.body).decode()
        problem = Problem(answer.status_code, "foreign_origin", f"pages may not send this: {why}")
        return JSONResponse(problem.body, problem.status, headers={"Vary": answer.headers["vary"]})
