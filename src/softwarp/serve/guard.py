"""Who may ask, and how much: hosts, origins, the token, the size and pace of requests, security headers."""

import asyncio
import hmac
import re
import time
from urllib.parse import parse_qs

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softwarp.serve.limits import Limits
from softwarp.serve.refusals import refusal

COOKIE = "softwarp_token"
OPEN = "/healthz"  # needs no token: what watches over servers has none
LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """An ASGI middleware that answers what must not reach the application.

    Without a token, only requests for a loopback name are served: a page elsewhere whose name has been made
    to lead here (DNS rebinding) is refused. With a token any name is served: browsers have no cookie there.
    """

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits) -> None:
        self.app, self.token, self.limits = app, token, limits
        self.inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        secured = _with_headers(send)
        refused = self._refuse(scope, Headers(scope=scope))
        if refused is not None:
            await refused(scope, receive, secured)
            return
        self.inside += 1
        try:
            await self.app(scope, _bounded(receive, self.limits), secured)
        finally:
            self.inside -= 1

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that is not served, None for one that is."""
        path = scope["path"]
        if self.token is None and not LOOPBACK.fullmatch(headers.get("host", "")):
            return refusal(
                path, 421, "this server answers to localhost only; to use another name, set a token"
            )
        if _is_foreign(headers):
            return refusal(path, 403, "requests from other sites are not answered")
        if self.token is not None and path != OPEN:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
            if path == "/" and given and self._is_token(given[-1]):
                return self._welcome(scope)
            if not self._knows_token(headers):
                return _unauthorized(path)
        length = headers.get("content-length", "0")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            return refusal(path, 400, "Content-Length is not a number")
        if int(length) > self.limits.upload_bytes:
            return refusal(path, 413, _too_large(self.limits))
        if self.inside >= self.limits.requests:
            return refusal(path, 503, "too many requests at the same time", {"retry-after": "1"})
        return None

    def _knows_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip()):
            return True
        return any(self._is_token(value) for value in _cookies(headers, COOKIE))

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), str(self.token).encode())

    def _welcome(self, scope: Scope) -> Response:
        """Keep the token in a cookie and take it out of the address."""
        response = RedirectResponse("/", 303)
        secure = scope["scheme"] == "https"
        response.set_cookie(COOKIE, str(self.token), httponly=True, samesite="strict", secure=secure)
        return response


def _cookies(headers: Headers, name: str) -> list[str]:
    """All values of a cookie, whatever is beside it: a browser sends those of every port of the host.

    http.cookies gives up at the first one that it does not like.
    """
    pairs = (each.partition("=") for line in headers.getlist("cookie") for each in line.split(";"))
    return [value.strip().strip('"') for key, _, value in pairs if key.strip() == name]


def _is_foreign(headers: Headers) -> bool:
    """Whether a page of another site makes this request; a link to the start page is harmless."""
    if headers.get("sec-fetch-site") == "cross-site":
        return headers.get("sec-fetch-mode") != "navigate"
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def _bounded(receive: Receive, limits: Limits) -> Receive:
    """`receive` that stops a body which is too large or arrives too slowly."""
    size, deadline, whole = 0, time.monotonic() + limits.seconds, False

    async def bounded() -> Message:
        nonlocal size, whole
        if whole:  # what follows is the end of the connection, which has no deadline
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, f"the request took longer than {limits.seconds:g} s") from None
        size += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if size > limits.upload_bytes:
            raise HTTPException(413, _too_large(limits))
        return message

    return bounded


def _with_headers(send: Send) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return secured


def _unauthorized(path: str) -> Response:
    text = "this page needs its token: open the address that `softwarp serve` has printed"
    if path == "/":
        return PlainTextResponse(f"{text}\n", 401)
    return refusal(path, 401, "the token is missing or wrong", {"www-authenticate": "Bearer"})


def _too_large(limits: Limits) -> str:
    return f"a request may have {limits.upload_bytes:,} bytes"
