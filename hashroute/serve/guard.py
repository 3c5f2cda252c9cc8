"""Who may ask: the host, the origin and the token of every request."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = ("/", "/health")
"""Paths that need no token: they tell nothing about the model."""
SHORTEST_TOKEN = 16
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Refuses requests from other sites, and those without the token if there is one.

    Without a token, a request must name a loopback host. So a site whose name was made to point to this computer (DNS
    rebinding) gets no answer. No CORS header is ever sent.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise ValueError(f"the token has {len(token)} characters: expected at least {SHORTEST_TOKEN}, all ASCII")
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        problem = self._problem(scope["path"], Headers(scope=scope))
        if problem is None:
            await self.app(scope, receive, send_guarded)
        else:
            status, line = problem
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
            await JSONResponse({"error": line}, status, headers)(scope, receive, send_guarded)

    def _problem(self, path: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.token is None and _name(host) not in LOOPBACK:
            return 403, f"the host {host[:80]!r} is not this computer: expected {', '.join(LOOPBACK)}, or a token"
        origin = headers.get("origin")
        if origin is not None and urlsplit_host(origin) != host.lower():
            return 403, f"the request comes from another site, {origin[:80]!r}: expected this server's own page"
        if self.token is not None and path not in OPEN_PATHS:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode(), self.token.encode())
            if scheme.lower() != "bearer" or not right:
                return 401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN"
        return None


def _name(host: str) -> str | None:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def urlsplit_host(origin: str) -> str | None:
    """The host and port of an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
