"""What a server accepts. Every limit is checked before memory or disk is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The most that a client may ask for."""

    body_bytes: int = 256 * 2**20
    """Bytes of one request."""
    file_bytes: int = 32 * 2**20
    """Bytes of one image file."""
    pixels: int = 25_000_000
    """Pixels of one image."""
    files: int = 2000
    """Images of one request."""
    name_length: int = 200
    """Characters in the name of a task, class or file."""
    body_seconds: float = 300
    """Time in which a request must have arrived."""
    decode_seconds: float = 120
    """Time in which the images of a request must be decoded: small files can be large images."""
    uploads: int = 4
    """Requests with images that are received at the same time."""
    lesson_seconds: float = 6 * 3600
    """Time in which a task must be learned. Finished epochs are kept: the same images continue."""
    jobs_kept: int = 20
    """Jobs that a client can ask about; older ones are dropped."""
