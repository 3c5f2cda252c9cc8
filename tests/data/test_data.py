"""Data files are found, read, checked and never half used."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat

from hashroute.data import DATASETS, data_folder, load_dataset
from hashroute.data.files import Source, download
from hashroute.data.matlab import read_matlab
from hashroute.data.readers import read_cifar_split, read_idx_split, read_pickle, read_svhn_split
from programs import hashroute, succeeded
from support import is_here


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), 1))


def idx_pair(folder: Path, n: int = 30, labels: int | None = None, side: int = 28) -> tuple[Path, Path]:
    images, names = folder / "images.gz", folder / "labels.gz"
    write_idx(images, np.arange(n * side * side, dtype=np.uint64).reshape(n, side, side).astype(np.uint8))
    write_idx(names, (np.arange(labels or n) % 10).astype(np.uint8))
    return images, names


def cifar_file(folder: Path, n: int = 20, top: int = 99) -> Path:
    path = folder / "train"
    labels = np.linspace(0, top, n).astype(int).tolist()
    pixels = np.arange(n * 3072).reshape(n, 3072).astype(np.uint8)
    path.write_bytes(pickle.dumps({b"data": pixels, b"fine_labels": labels, b"coarse_labels": labels}, protocol=2))
    return path


def svhn_file(folder: Path, n: int = 25, first: int = 1) -> Path:
    path = folder / "train_32x32.mat"
    pixels = np.arange(32 * 32 * 3 * n).reshape(32, 32, 3, n).astype(np.uint8)
    savemat(path, {"X": pixels, "y": (np.arange(n) % 10 + first)[:, None]}, do_compression=True)
    return path


def test_idx(tmp_path: Path) -> None:
    split = read_idx_split(*idx_pair(tmp_path), count=30)
    assert split.images.shape == (30, 1, 28, 28)
    assert split.images.dtype == torch.uint8
    assert split.images[1, 0, 0, 3] == (784 + 3) % 256
    assert split.labels.tolist() == [i % 10 for i in range(30)]


def test_cifar(tmp_path: Path) -> None:
    split = read_cifar_split(cifar_file(tmp_path), count=20)
    assert split.images.shape == (20, 3, 32, 32)
    assert split.images[2, 1, 4, 5] == (2 * 3072 + 1024 + 4 * 32 + 5) % 256


def test_svhn_turns_label_ten_into_zero_and_takes_any_number(tmp_path: Path) -> None:
    split = read_svhn_split(svhn_file(tmp_path))
    assert split.images.shape == (25, 3, 32, 32)
    assert split.labels.tolist() == [(i + 1) % 10 for i in range(25)]
    assert split.images[7, 2, 4, 5] == (((4 * 32 + 5) * 3 + 2) * 25 + 7) % 256


def broken_idx(folder: Path, how: str) -> None:
    images, labels = idx_pair(folder, labels=29 if how == "counts" else None, side=27 if how == "shape" else 28)
    if how == "truncated":
        images.write_bytes(images.read_bytes()[:-20])
    if how == "flipped":
        content = bytearray(images.read_bytes())
        content[len(content) // 2] ^= 255
        images.write_bytes(content)
    if how == "not gzip":
        images.write_bytes(b"hello")
    if how == "not idx":
        images.write_bytes(gzip.compress(b"hello"))
    if how == "tiny":
        images.write_bytes(gzip.compress(b"\0\0\x08"))
    if how == "huge":
        images.write_bytes(gzip.compress(b"\0\0\x08\x04" + b"\0\x01\0\0" * 4))
    if how == "short":
        write_idx(labels, np.zeros(10, np.uint8))
    read_idx_split(images, labels, count=40 if how == "number" else 30)


IDX_FAULTS = ["truncated", "flipped", "not gzip", "not idx", "tiny", "huge", "short", "counts", "shape", "number"]


@pytest.mark.parametrize("how", IDX_FAULTS)
def test_a_broken_idx_file_is_named(how: str, tmp_path: Path) -> None:
    blamed = "labels" if how in ("short", "counts") else "images"
    with pytest.raises(ValueError, match=rf"{blamed}.gz cannot be used: .*; delete it") as error:
        broken_idx(tmp_path, how)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("how", ["truncated", "labels", "ragged", "rows", "number", "other pickle", "no pickle"])
def test_a_broken_cifar_file_is_named(how: str, tmp_path: Path) -> None:
    path = cifar_file(tmp_path, top=100 if how == "labels" else 99)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    if how == "ragged":
        path.write_bytes(pickle.dumps({"data": np.zeros((20, 3072), np.uint8), "fine_labels": [[1], [2, 3]]}))
    if how == "rows":
        path.write_bytes(pickle.dumps({"data": np.zeros((20, 3000), np.uint8), "fine_labels": [1] * 20}))
    if how == "other pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    if how == "no pickle":
        path.write_bytes(b"hello")
    with pytest.raises(ValueError, match="train cannot be used: "):
        read_cifar_split(path, count=21 if how == "number" else 20)


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


def test_a_pickle_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_bytes(pickle.dumps({"data": Harmful()}))
    with pytest.raises(ValueError, match=r"train cannot be used: .*system, which is not allowed in a data file"):
        read_pickle(tmp_path / "train")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("how", ["truncated", "labels", "fractions", "no mat", "empty", "newer"])
def test_a_broken_svhn_file_is_named(how: str, tmp_path: Path) -> None:
    path = svhn_file(tmp_path, first=2 if how == "labels" else 1)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-300])
    if how == "fractions":
        savemat(path, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full((4, 1), 1.5)})
    if how == "newer":  # HDF5 inside
        path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\x02IM" + b"\0" * 400)
    if how == "no mat":
        path.write_bytes(b"hello")
    if how == "empty":
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"train_32x32\.mat cannot be used: "):
        read_svhn_split(path)


def big(path: Path) -> Path:
    """A file that claims a gigabyte, of which the disk holds nothing."""
    with open(path, "wb") as file:
        file.truncate(2**30)
    return path


def test_what_a_file_unpacks_to_is_bounded(tmp_path: Path) -> None:
    bomb = gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2**14, 2**7, 2**7) + b"\0" * 2**20 * 64, 1)
    images, labels = idx_pair(tmp_path)
    images.write_bytes(bomb)
    with pytest.raises(ValueError, match="it holds more than the 23,536 bytes that are expected"):
        read_idx_split(images, labels, count=30)
    for read in (read_pickle, read_svhn_split, functools.partial(read_idx_split, labels=labels, count=30)):
        with pytest.raises(ValueError, match="it has 1,073,741,824 bytes: expected at most"):
            read(big(tmp_path / "large"))  # type: ignore[operator]


HUGE = {
    "an index of the memo": (b"\x80\x02}r" + struct.pack("<I", 2**29) + b".", "{}"),
    "bytes that are not there": (b"\x80\x05\x96" + struct.pack("<Q", 2**31) + b".", "its content is not what"),
}


@pytest.mark.parametrize("case", HUGE)
def test_numbers_in_a_pickle_take_no_memory(case: str, tmp_path: Path) -> None:
    """The unpickler in C makes room for as many things as the index of one of them says."""
    path, (content, expected) = tmp_path / "train", HUGE[case]
    path.write_bytes(content)
    script = f"""
import resource
from pathlib import Path
from hashroute.data.matlab import read_matlab
from hashroute.data.readers import read_pickle
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(read_pickle(Path({str(path)!r})))
except ValueError as error:
    print(error)
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 50_000
"""
    assert expected in succeeded(folder=tmp_path, script=script)


def test_numpy_never_sees_what_a_pickle_says_of_an_array(tmp_path: Path) -> None:
    """A type of numbers with a strange state makes numpy itself crash."""
    path = cifar_file(tmp_path)
    content = path.read_bytes()
    numbers = content.index(b"numpy\ndtype")
    for place in range(numbers, numbers + 60):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1 :])
        with suppress(ValueError):
            assert read_cifar_split(path, count=20).images.dtype == torch.uint8
    path.write_bytes(pickle.dumps({b"data": np.zeros((20, 3072)), b"fine_labels": [0] * 20}, protocol=2))
    with pytest.raises(ValueError, match="an array of f8 has the shape"):
        read_pickle(path)


def test_pipes_are_no_data_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_pickle, read_svhn_split):
        with pytest.raises(ValueError, match="is a pipe or a device: expected a file"):
            read(tmp_path / "pipe")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float64, np.int64])
def test_matlab_files_are_read_as_scipy_reads_them(compressed: bool, kind: type, tmp_path: Path) -> None:
    arrays = {"X": np.arange(120).reshape(2, 3, 4, 5).astype(kind), "y": np.array([[1], [300]]).astype(kind)}
    savemat(tmp_path / "a.mat", {**arrays, "text": "skipped", "z": np.array([1j])}, do_compression=compressed)
    found, expected = read_matlab(tmp_path / "a.mat", 2**20), loadmat(tmp_path / "a.mat")
    assert found.keys() == {"X", "y"}
    for name, values in found.items():
        assert values.dtype == expected[name].dtype
        assert np.array_equal(values, expected[name])


def test_a_damaged_matlab_file_never_ends_the_process(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    whole = {}
    for compressed in (True, False):
        savemat(
            tmp_path / "a.mat", {"X": np.zeros((4, 4, 3, 9), np.uint8), "y": np.ones((9, 1))}, do_compression=compressed
        )
        whole[compressed] = (tmp_path / "a.mat").read_bytes()
    refused = 0
    for number in range(2000):
        content = bytearray(whole[number % 2 == 0])
        for place in random.integers(120, min(len(content), 400), random.integers(1, 6)):
            content[place] = random.integers(256)
        (tmp_path / "b.mat").write_bytes(content[: random.integers(100, len(content))] if number % 5 == 0 else content)
        try:
            read_matlab(tmp_path / "b.mat", 2**16)
        except (ValueError, zlib.error, StopIteration):
            refused += 1
    assert refused > 1000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A web server on this machine, and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()


def test_a_missing_file_is_downloaded_and_its_sum_checked(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    (served / "a.gz").write_bytes(b"content")
    right = hashlib.sha256(b"content").hexdigest()
    download(Source(address + "a.gz", right, ("a.gz",)), ("a.gz",), tmp_path / "data")
    assert (tmp_path / "data" / "a.gz").read_bytes() == b"content"
    with pytest.raises(
        FileNotFoundError, match=r"a\.gz could not be downloaded .*download http.*/a.gz yourself and put a"
    ):
        download(Source(address + "a.gz", "0" * 64, ("a.gz",)), ("a.gz",), tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_https_comes_first_and_the_sum_is_checked_everywhere(server: tuple[Path, str], tmp_path: Path) -> None:
    for spec in DATASETS.values():
        assert all(source.url.startswith("https://") and len(source.sha256) == 64 for source in spec.sources)
    served, address = server
    (served / "a.gz").write_bytes(b"content")
    right = hashlib.sha256(b"content").hexdigest()
    nowhere = "https://127.0.0.1:9/"
    download(Source(f"{nowhere}a.gz", right, ("a.gz",), f"{address}a.gz"), ("a.gz",), tmp_path / "data")
    assert (tmp_path / "data" / "a.gz").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError, match="its checksum is wrong"):
        download(Source(f"{nowhere}a.gz", "0" * 64, ("a.gz",), f"{address}a.gz"), ("a.gz",), tmp_path / "other")


def test_files_that_are_not_the_published_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").write_bytes(b"other")
    sums = tuple(hashlib.md5(b"content", usedforsecurity=False).hexdigest() for _ in range(2))
    assert Source("https://x/a.tar.gz", "0" * 64, ("a", "b"), md5=sums).differing(tmp_path) == ("b",)
    assert Source("https://x/a", hashlib.sha256(b"content").hexdigest(), ("a",)).differing(tmp_path) == ()
    assert Source("https://x/a", "0" * 64, ("a",)).differing(tmp_path) == ("a",)


def test_all_files_that_are_missing_are_named(
    server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a.gz", "b.gz", "c.gz")
    sources = tuple(Source(server[1] + name, "0" * 64, (name,)) for name in names)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], folder="MNIST", sources=sources))
    monkeypatch.setenv("HASHROUTE_DATA", str(tmp_path))
    (tmp_path / "MNIST").mkdir()
    (tmp_path / "MNIST" / "b.gz").write_bytes(b"content")
    with pytest.raises(FileNotFoundError, match=r"^a\.gz could not .* contains MNIST; also missing: c\.gz$"):
        load_dataset("mnist")


def test_a_failed_download_is_explained(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    (served / "a.gz").write_bytes(b"content")
    with pytest.raises(FileNotFoundError, match="its checksum is wrong"):
        download(Source(address + "a.gz", "0" * 64, ("a.gz",)), ("a.gz",), tmp_path)
    with pytest.raises(FileNotFoundError, match="HTTPError 404"):
        download(Source(address + "b.gz", "0" * 64, ("b.gz",)), ("b.gz",), tmp_path)


def test_an_archive_of_something_else_is_named(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    with tarfile.open(served / "set.tar.gz", "w:gz") as tar:
        tar.add(__file__, "cifar-100-python/other")
    (served / "bad.tar.gz").write_bytes(b"no archive")
    for name in ("set.tar.gz", "bad.tar.gz"):
        digest = hashlib.sha256((served / name).read_bytes()).hexdigest()
        with pytest.raises(ValueError, match=rf"{name} cannot be used: it is not the expected archive") as error:
            download(Source(address + name, digest, ("train",)), ("train",), tmp_path / "cifar-100-python")
        assert "\n" not in str(error.value)


def test_what_a_user_put_there_is_kept(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    with tarfile.open(served / "set.tar.gz", "w:gz") as tar:
        for name in ("train", "meta"):
            tar.add(__file__, f"cifar-100-python/{name}")
    digest = hashlib.sha256((served / "set.tar.gz").read_bytes()).hexdigest()
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(b"mine")
    download(Source(address + "set.tar.gz", digest, ("train", "meta")), ("meta",), folder)
    assert (folder / "train").read_bytes() == b"mine"
    assert (folder / "meta").exists()


def test_an_archive_is_laid_out(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    (served / "inside").write_bytes(b"content")
    with tarfile.open(served / "set.tar.gz", "w:gz") as tar:
        tar.add(served / "inside", "cifar-100-python/train")
    digest = hashlib.sha256((served / "set.tar.gz").read_bytes()).hexdigest()
    folder = tmp_path / "cifar-100-python"
    download(Source(address + "set.tar.gz", digest, ("train",)), ("train",), folder)
    assert [path.name for path in folder.iterdir()] == ["train"]
    assert (folder / "train").read_bytes() == b"content"


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {"HASHROUTE_DATA": str(folder), "COLUMNS": "200", "http_proxy": "", "https_proxy": ""}
    return hashroute("data", *arguments, folder=folder, variables=variables)


def test_the_list_says_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "svhn"
    folder.mkdir()
    svhn_file(folder)
    (folder / "train_32x32.mat").rename(folder / "test_32x32.mat")
    svhn_file(folder, n=40)
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).write_bytes(b"broken")
    shown = run_command(tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "40 training images, 25 test images; not the published files: train_32x32.mat, test" in shown.stdout
    assert "download it with: hashroute data mnist" in shown.stdout
    assert "cifar-100-python/train cannot be used" in shown.stdout.replace("\n", "")
    assert str(tmp_path) in shown.stdout


def test_a_data_set_nobody_knows(tmp_path: Path) -> None:
    shown = run_command(tmp_path, "imagenet")
    assert shown.returncode == 2
    assert shown.stderr == (
        "hashroute: there is no data set 'imagenet': expected one of mnist, fashion-mnist, cifar-100, svhn\n"
    )


def test_the_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HASHROUTE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("HASHROUTE_DATA")
    assert data_folder().parts[-2:] == ("hashroute", "data")


ZEROS = {"mnist": 5923, "fashion-mnist": 6000, "cifar-100": 500}
"""Training images of class 0."""


@pytest.mark.parametrize("name", DATASETS)
def test_the_real_files(name: str) -> None:
    if not is_here(name):
        pytest.skip(f"{name} is not in {data_folder()}")
    dataset, spec = load_dataset(name), DATASETS[name]
    pixels = dataset.train.images[::5].float().div_(255).transpose(0, 1).flatten(1)
    assert pixels.mean(1).tolist() == pytest.approx(spec.mean, abs=0.003)
    assert pixels.std(1).tolist() == pytest.approx(spec.std, abs=0.003)
    assert name not in ZEROS or int((dataset.train.labels == 0).sum()) == ZEROS[name]
    assert len(dataset.class_names) == int(dataset.train.labels.max()) + 1


def test_slow_packages_are_imported_only_when_they_are_needed() -> None:
    check = "import sys, hashroute.data; print({'pooch', 'scipy', 'sklearn', 'requests'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "set()\n"
