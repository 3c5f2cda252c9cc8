"""Run the server until it is told to stop."""

from __future__ import annotations

import signal
import socket
import warnings
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from PIL import Image

CONNECTIONS = 64
"""Connections at the same time; more are answered with 503."""
LAST_SECONDS = 60
"""Requests that take longer are not waited for when the server stops."""


def run_server(app: FastAPI, host: str, port: int, ready: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or Ctrl-C: requests that have begun are finished, a lesson is ended.

    ready: called with host and port when the server accepts connections; port 0 becomes a free one.
    """
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=LAST_SECONDS,
        )
        server = uvicorn.Server(config)
        app.state.room.closing = lambda: server.should_exit
        # uvicorn raises the signal again when everything has ended; by then there is nothing left to do.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        ready(host, listener.getsockname()[1])
        server.run(sockets=[listener])
