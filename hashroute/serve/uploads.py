"""Uploads: multipart bodies, written to files while they arrive, and read as images one at a time."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import anyio
import numpy as np
from fastapi import HTTPException, Request
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from hashroute.data.photos import photo_pixels
from hashroute.model.names import is_name
from hashroute.serve.limits import Limits

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that are read. Some others start programs or have decoders that few people test."""
MOST_HEADERS = 8192
"""Bytes of the headers of one part."""
DRAIN_SECONDS = 5.0
"""A refused body is read and dropped for this long, because a client that still sends would not see the answer."""


@dataclass
class Upload:
    """One image file that was sent."""

    name: str
    """What the client calls it. It is shown, and never used as a path."""
    path: Path
    """Where it is: a file that is named by the SHA-256 of its content."""


@dataclass
class Form:
    """What was sent: images, and the class of each if they are to be learned."""

    images: list[Upload] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)


@contextmanager
def upload_folder() -> Iterator[Path]:
    """A folder for the files of one request, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="hashroute-") as folder:
        yield Path(folder)


async def read_form(request: Request, folder: Path, limits: Limits) -> Form:
    """Write the images of a multipart body into a folder. A body beyond the limits is refused as soon as it is seen."""
    try:
        with anyio.fail_after(limits.body_seconds):
            return await _read(request, folder, limits)
    except TimeoutError:
        raise HTTPException(408, f"the body took longer than {limits.body_seconds:g} seconds: send less") from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection ended before the body did") from None
    except HTTPException:
        await _drain(request, limits)
        raise


async def _read(request: Request, folder: Path, limits: Limits) -> Form:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 200:
        raise HTTPException(415, "the body is not multipart/form-data: send each file as a part named images")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limits.body_bytes:
        raise HTTPException(413, f"the body has {length[:20]} bytes: expected at most {limits.body_bytes:,}")
    received = 0
    with _Parts(folder, limits) as parts:
        parser = MultipartParser(boundary, parts.callbacks())
        async for chunk in request.stream():
            received += len(chunk)
            if received > limits.body_bytes:
                raise HTTPException(413, f"the body is too long: expected at most {limits.body_bytes:,} bytes")
            try:
                parser.write(chunk)
            except FormParserError as error:
                raise HTTPException(400, f"the body is not valid multipart/form-data ({error})") from None
    if not parts.ended:
        raise HTTPException(400, "the body ends before its last part does: send it again")
    if not parts.form.images:
        raise HTTPException(400, "there are no images: send each file as a part named images")
    return parts.form


async def _drain(request: Request, limits: Limits) -> None:
    """Drop what has not arrived yet."""
    left = limits.body_bytes
    with anyio.move_on_after(DRAIN_SECONDS), suppress(ClientDisconnect, RuntimeError):  # all has arrived: RuntimeError
        async for chunk in request.stream():
            left -= len(chunk)
            if left <= 0:
                return


class _Parts:
    """The parts of a body while it arrives. Of each file, only the piece that has just arrived is in memory."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.form, self.ended = Form(), False
        self.folder, self.limits = folder, limits
        self.file: IO[bytes] | None = None

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self.begin,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_header_end": self.header_end,
            "on_headers_finished": self.start,
            "on_part_data": self.data,
            "on_part_end": self.finish,
            "on_end": self.end,
        }

    def begin(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.key, self.value, self.header_bytes = b"", b"", 0

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self.key += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self.value += data[start:end]

    def _count_header(self, size: int) -> None:
        self.header_bytes += size
        if self.header_bytes > MOST_HEADERS:
            raise HTTPException(400, f"a part has headers of more than {MOST_HEADERS} bytes")

    def header_end(self) -> None:
        self.headers[self.key.lower()] = self.value
        self.key, self.value = b"", b""

    def start(self) -> None:
        kind, options = parse_options_header(self.headers.get(b"content-disposition", b""))
        self.name, limits = options.get(b"name", b""), self.limits
        if kind != b"form-data" or self.name not in (b"images", b"classes"):
            raise HTTPException(400, f"there is a part named {_text(self.name)[:40]!r}: expected images or classes")
        self.is_file, self.size = self.name == b"images", 0
        if len(self.form.images if self.is_file else self.form.classes) == limits.files:
            raise HTTPException(413, f"there are too many parts: expected at most {limits.files:,} images")
        if self.is_file:
            shown = "".join(each for each in _text(options.get(b"filename", b"")) if each.isprintable())
            self.shown = shown[: limits.name_length] or f"image {len(self.form.images) + 1}"
            self.digest = hashlib.sha256()
            self.file = open(self.folder / "arriving", "wb")  # noqa: SIM115  it is closed when the part ends
        else:
            self.text = b""

    def data(self, data: bytes, start: int, end: int) -> None:
        piece, limits = data[start:end], self.limits
        self.size += len(piece)
        if self.file is not None:
            if self.size > limits.file_bytes:
                raise HTTPException(413, f"{self.shown} is too large: expected at most {limits.file_bytes:,} bytes")
            self.digest.update(piece)
            self.file.write(piece)
        else:
            if self.size > 4 * limits.name_length:  # a character has up to four bytes
                raise HTTPException(413, f"a class name is too long: expected {limits.name_length} characters")
            self.text += piece

    def finish(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
            path = (self.folder / "arriving").rename(self.folder / self.digest.hexdigest())
            self.form.images.append(Upload(self.shown, path))
        else:
            self.form.classes.append(check_name("a class", _text(self.text), self.limits))

    def end(self) -> None:
        self.ended = True


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "a name is not UTF-8 text") from None


def check_name(what: str, name: str, limits: Limits) -> str:
    """A name of a task or class that a model can keep."""
    if not is_name(name) or len(name) > limits.name_length:
        given = f"has the name {name[:40]!r}" if name else "has no name"
        raise HTTPException(400, f"{what} {given}: expected up to {limits.name_length} printable characters")
    return name


def read_image(upload: Upload, size: int, colour: bool, limits: Limits) -> NDArray[np.uint8]:
    """The pixels of an upload: (channels, size, size). Its header says how large it is before it is decoded."""
    try:
        with Image.open(upload.path, formats=FORMATS) as image:
            if image.width * image.height > limits.pixels:
                raise Image.DecompressionBombError
            return photo_pixels(image, size, colour)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise HTTPException(413, f"{upload.name} has too many pixels: expected at most {limits.pixels:,}") from None
    except Exception as error:  # a damaged file can raise anything in a decoder
        reason = " ".join(str(error).replace(str(upload.path), "it").split()) or type(error).__name__
        expected = ", ".join(FORMATS)
        if isinstance(error, UnidentifiedImageError):
            reason = "it is something else"
        raise HTTPException(400, f"{upload.name} cannot be read as an image ({reason}): expected {expected}") from None
