"""Refusals as programs expect them: in OpenAI's shape below /v1, in ours elsewhere."""

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from softwarp.files import printable

OPENAI = "/v1/"
CODES = {401: "invalid_api_key"}


def refusal(path: str, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a request for `path` that is not served."""
    if not path.startswith(OPENAI):
        return JSONResponse({"detail": detail}, status, headers)
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": detail, "type": kind, "param": None, "code": CODES.get(status)}
    return JSONResponse({"error": error}, status, headers)


def add_refusals(app: FastAPI) -> None:
    """Let an application refuse so whatever it raises."""
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _out_of_range)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(request.url.path, error.status_code, error.detail, error.headers)


def _out_of_range(request: Request, error: Exception) -> Response:
    """Say what is wrong without repeating what was sent, which JSON may not be able to hold."""
    assert isinstance(error, RequestValidationError)
    causes = [
        f"{printable('.'.join(str(part) for part in each['loc'][1:]))}: {each['msg']}"
        for each in error.errors()
    ]
    path = request.url.path
    status = 400 if path.startswith(OPENAI) else 422
    return refusal(path, status, "; ".join(causes[:5]) or "malformed")
