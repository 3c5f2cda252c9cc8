"""Hostile requests get one line and a 4xx, and change nothing."""

from __future__ import annotations

import io
import shutil
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from PIL import Image

from kept_models import content
from served import CHANGE, Server, running

SMALL_LIMITS = """
from hashroute.cli import main
from hashroute.serve import app as serving, uploads
from hashroute.serve.limits import Limits

uploads.DRAIN_SECONDS = 3600  # whoever waited for a body that has arrived would wait forever
limits = Limits(body_bytes=400_000, file_bytes=100_000, files=20, body_seconds=2)
create_app = serving.create_app
serving.create_app = lambda path, token, **named: create_app(path, token, limits, **named)
raise SystemExit(main())
"""
MULTIPART = "multipart/form-data; boundary=x"
TOKEN = "a-token-of-many-characters"


@pytest.fixture(scope="module")
def small(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with small limits."""
    folder = tmp_path_factory.mktemp("small")
    model = Path(shutil.copytree(images / "model", folder / "model"))
    with running(model, script=SMALL_LIMITS) as server:
        yield server


def png(width: int = 4, height: int = 4, header: tuple[int, int] | None = None) -> bytes:
    """A PNG file, perhaps with a header that claims another size."""
    content = io.BytesIO()
    Image.new("RGB", (width, height)).save(content, "PNG")
    found = content.getvalue()
    if header is None:
        return found
    chunk = b"IHDR" + struct.pack(">II", *header) + found[24:29]
    return found[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + found[33:]


def test_what_is_not_an_image_is_refused(small: Server) -> None:
    before = content(small.model)
    cases = [
        (b"hello", 400, "cannot be read as an image"),
        (b"", 400, "cannot be read as an image"),
        (png(64, 64)[:-40], 400, "cannot be read as an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 400, "cannot be read as an image"),
        (png(header=(60_000, 60_000)), 413, "too many pixels"),
        (png(header=(10_000, 9_000)), 413, "too many pixels"),
        (png(header=(8_000, 8_000)), 413, "too many pixels"),
        (b"x" * 200_000, 413, "too large"),
    ]
    for body, status, line in cases:
        for path in ("predict", "learn?task=new"):
            data = {"classes": ["a"]} if path.startswith("learn") else {}
            answer = small.post(path, files=[("images", ("../../evil\r\n.png", body))], data=data)
            assert answer.status_code == status, answer.text
            assert line in answer.json()["error"]
            assert "/tmp" not in answer.text
            assert "\n" not in answer.text
    assert content(small.model) == before


def test_too_much_is_refused(small: Server) -> None:
    many = [("images", (f"{place}.png", png())) for place in range(21)]
    answer = small.post("predict", files=many)
    assert (answer.status_code, "too many parts" in answer.json()["error"]) == (413, True)
    answer = small.post("predict", files=many[:20])
    assert answer.status_code == 200
    large = [("images", (f"{place}.png", b"x" * 90_000)) for place in range(6)]
    assert small.post("predict", files=large).status_code == 413
    kind = {"Content-Type": MULTIPART}
    endless = (b"--x\r\n" if place == 0 else b"y" * 50_000 for place in range(40))
    assert small.post("predict", kind, data=endless).status_code in (400, 413)
    slow = socket.create_connection(("127.0.0.1", int(small.address.rsplit(":")[-1].strip("/"))), timeout=600)
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    slow.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n--x".encode())
    assert b" 408 " in slow.recv(1000)
    slow.close()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{}", "application/json"),
        (b"", "multipart/form-data"),
        (b"", MULTIPART),
        (b"junk", MULTIPART),
        (b"--x\r\nContent-Disposition: form-data; name=other\r\n\r\n1\r\n--x--\r\n", MULTIPART),
        (b"--x\r\nContent-Disposition: form-data; name=images; filename=a\r\n\r\n1", MULTIPART),
        (b"--x\r\nContent-Disposition: form-data; name=classes\r\n\r\n\xff\r\n--x--", MULTIPART),
        (b"--x\r\n" + b"A: " + b"y" * 20_000, MULTIPART),
        (b"--x\r\n\r\n\r\n--x--\r\n", MULTIPART),
    ],
)
def test_bodies_of_a_wrong_kind_are_refused(small: Server, body: bytes, kind: str) -> None:
    answer = small.post("predict", {"Content-Type": kind}, data=body)
    assert answer.status_code in (400, 415), answer.text
    assert list(answer.json()) == ["error"]


def test_wrong_queries_are_refused(small: Server) -> None:
    files = [("images", ("a.png", png()))]
    cases = [
        ("predict?top=0", 422),
        ("predict?top=1000000000", 422),
        ("predict?top=x", 422),
        ("predict?task=../../etc/passwd", 404),
        ("learn", 422),
        ("learn?task=%20", 400),
        ("learn?task=a%00b", 400),
        ("learn?task=new&epochs=0", 422),
        ("learn?task=new", 400),
        ("forget?task=../model", 404),
        ("forget", 422),
        ("undo/../tasks", 405),
        ("nothing", 404),
    ]
    for path, status in cases:
        answer = small.post(path, files=files)
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), (path, answer.text)
    assert small.get("jobs/..%2f..%2fetc").status_code == 404
    assert small.get("../../etc/passwd").status_code == 404


def test_no_other_site_can_ask_or_change_anything(server: Server) -> None:
    before = content(server.model)
    own = server.address.strip("/")
    for path in ("undo", "forget?task=round", "learn?task=x"):
        assert server.post(path, {}).status_code == 403
        assert server.post(path, {"Origin": own}).status_code == 403
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://[", own + ".evil.example"):
            assert server.post(path, {**CHANGE, "Origin": origin}).status_code == 403
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Headers": "x-hashroute"}
    answer = requests.options(server.address + "undo", headers=preflight, timeout=600)
    assert answer.status_code == 403
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "[", "10.0.0.1:80"):
        answer = server.get("tasks", headers={"Host": host})
        assert answer.status_code in (400, 403), host
        assert "round" not in answer.text
    for found in (answer, server.get("tasks", headers={"Origin": own}), server.get("")):
        assert not [name for name in found.headers if name.lower().startswith("access-control")]
    assert "frame-ancestors 'none'" in server.get("").headers["content-security-policy"]
    assert content(server.model) == before


def test_a_token_is_asked_for(images: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(images / "model", tmp_path / "model"))
    with running(model, "--host", "0.0.0.0", "--token", TOKEN) as server:
        assert server.get("health").status_code == 200
        assert TOKEN not in server.get("").text
        for wrong in ("", "Bearer", "Bearer x", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe9"):
            for path in ("tasks", "openapi.json", "jobs/x"):
                answer = server.get(path, headers={"Authorization": wrong.encode("latin-1")})
                assert answer.status_code == 401
            assert server.post("undo", {**CHANGE, "Authorization": wrong.encode("latin-1")}).status_code == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert server.get("tasks", headers={**right, "Host": "models.example"}).status_code == 200
        assert server.get("tasks", headers={**right, "Origin": "http://evil.example"}).status_code == 403
        assert server.post("undo", right).status_code == 403


def resident(server: Server) -> int:
    """Bytes of memory that the server has."""
    return 4096 * int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])


def test_memory_stays_flat(server: Server) -> None:
    """Ten thousand files, a body without end, bombs and truncated files, each again and again."""
    before = content(server.model)
    image = png(64, 64)
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    kind = {"Content-Type": MULTIPART}
    bombs = [("images", (f"{place}.png", png(header=(60_000, 60_000)))) for place in range(100)]
    cases = [
        (413, dict(data=(part + image + b"\r\n") * 10_000 + b"--x--\r\n", headers=kind)),
        (413, dict(data=(part, *(b"\0" * 2**20 for _ in range(40))), headers=kind)),
        (413, dict(files=bombs)),
        (413, dict(files=[("images", ("bomb.png", zlib_bomb()))])),
        (400, dict(files=[("images", ("half.png", image[: len(image) // 2]))])),
        (415, dict(json={"images": ["a.png"] * 10_000})),
    ]

    def attack() -> None:
        for status, request in cases:
            sent = {**request, "data": iter(request["data"])} if isinstance(request.get("data"), tuple) else request
            answer = server.post("predict", **{"headers": {}, **sent})
            assert (answer.status_code, list(answer.json())) == (status, ["error"]), answer.text

    attack()
    first = resident(server)
    for _ in range(3):
        attack()
    assert resident(server) < first + 32 * 2**20
    assert content(server.model) == before


def zlib_bomb() -> bytes:
    """A PNG file of 100 million pixels in 12 kB."""
    chunk = b"IHDR" + struct.pack(">II", 10_000, 10_000) + b"\1\0\0\0\0"
    rows = b"IDAT" + zlib.compress(bytes(1251 * 10_000), 9)
    parts = [struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in (chunk, rows)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
