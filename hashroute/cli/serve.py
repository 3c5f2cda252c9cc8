"""hashroute serve: a model over HTTP, with a page for people."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import MODEL, say

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN = "HASHROUTE_TOKEN"  # a name  # nosec B105


@dataclass(frozen=True)
class ServeSettings:
    """The model to serve."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model. The first lesson makes it if it does not exist."""
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on. Any other than this computer's own needs a token."""
    port: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 8000
    """Port to listen on; 0 takes a free one."""
    token: Annotated[str | None, tyro.conf.arg(metavar="TOKEN")] = None
    """Token of at least 16 characters that clients must send; by default that in HASHROUTE_TOKEN, if it is set."""
    backbone: Annotated[str, tyro.conf.arg(metavar="NAME")] = "small"
    """Encoder of a new model, by name. For a model with a backbone of your own: FILE.py:FUNCTION again."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Device to compute on: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""


def run_serve(settings: ServeSettings, console: Console) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    token = settings.token or os.environ.get(TOKEN) or None
    if settings.host not in LOOPBACK and token is None:
        raise ValueError(f"--host is {settings.host}, which others can reach: give a --token, or set {TOKEN}")
    if not 0 <= settings.port <= 65535:
        raise ValueError(f"--port is {settings.port}: expected 0 to 65535")
    try:
        from hashroute.serve.app import create_app
        from hashroute.serve.run import run_server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("hashroute"):
            raise
        raise ValueError(f"{error.name} is not installed: pip install 'hashroute[serve]'") from None

    def ready(host: str, port: int) -> None:
        place = f"[{host}]" if ":" in host else host
        say(console, f"{settings.model} is at http://{place}:{port}/{'#token=' + token if token else ''}")
        say(console, "stop with Ctrl-C; a lesson that is not finished continues when the same images are sent again")

    app = create_app(settings.model, token, device=settings.device, backbone=settings.backbone)
    run_server(app, settings.host, settings.port, ready)
