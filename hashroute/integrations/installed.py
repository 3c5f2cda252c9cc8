"""Libraries that are extras: whether they are installed."""

from __future__ import annotations

import importlib.util


def check_installed(what: str, package: str, extra: str) -> None:
    """Raise an error that names the extra, if the package is missing that something needs."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{what} needs the package {package}: pip install 'hashroute[{extra}]'")
