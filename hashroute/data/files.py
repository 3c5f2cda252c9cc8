"""Which files a data set is made of, where they lie, and how to get those that are missing."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress

from hashroute.data.readers import (
    BrokenFileError,
    Dataset,
    read_cifar_names,
    read_cifar_split,
    read_idx_split,
    read_svhn_split,
)

pooch.get_logger().setLevel("WARNING")

VARIABLE = "HASHROUTE_DATA"
DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@dataclass(frozen=True)
class Source:
    """A file to download, and the files of the data set that come with it."""

    url: str
    md5: str
    files: tuple[str, ...]
    """Relative to the data set's folder; an archive holds several."""

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Those that are not in this folder."""
        return tuple(file for file in self.files if not (folder / file).exists())


@dataclass(frozen=True)
class DatasetFiles:
    """A data set: its folder, its sources, and the function that reads them."""

    folder: str
    sources: tuple[Source, ...]
    read: Callable[[Path], Dataset]

    def missing(self, folder: Path) -> tuple[str, ...]:
        """The files of all sources that are not in this folder."""
        return tuple(file for source in self.sources for file in source.missing(folder))


def _idx_sources(base: str, sums: tuple[str, str, str, str]) -> tuple[Source, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(Source(base + name, md5, (name,)) for name, md5 in zip(names, sums, strict=True))


def _read_idx(names: tuple[str, ...]) -> Callable[[Path], Dataset]:
    def read(folder: Path) -> Dataset:
        train, test = (
            read_idx_split(folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz", count)
            for part, count in (("train", 60_000), ("t10k", 10_000))
        )
        return Dataset(train, test, names)

    return read


def _read_cifar(folder: Path) -> Dataset:
    train, test = read_cifar_split(folder / "train", 50_000), read_cifar_split(folder / "test", 10_000)
    return Dataset(train, test, read_cifar_names(folder / "meta"))


def _read_svhn(folder: Path) -> Dataset:
    return Dataset(read_svhn_split(folder / "train_32x32.mat"), read_svhn_split(folder / "test_32x32.mat"), DIGITS)


_SVHN = "http://ufldl.stanford.edu/housenumbers/"
DATASETS = {
    "mnist": DatasetFiles(
        "mnist",
        _idx_sources(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        _read_idx(DIGITS),
    ),
    "fashion-mnist": DatasetFiles(
        "fashion-mnist",
        _idx_sources(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        _read_idx(GARMENTS),
    ),
    "cifar-100": DatasetFiles(
        "cifar-100-python",
        (
            Source(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                ("train", "test", "meta"),
            ),
        ),
        _read_cifar,
    ),
    "svhn": DatasetFiles(
        "svhn",
        (
            Source(_SVHN + "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", ("train_32x32.mat",)),
            Source(_SVHN + "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", ("test_32x32.mat",)),
        ),
        _read_svhn,
    ),
}


def data_folder() -> Path:
    """Where data sets lie: the folder that HASHROUTE_DATA names, else hashroute's in the platform's cache."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path(pooch.os_cache("hashroute")) / "data"


@dataclass(frozen=True)
class Status:
    """What is there of a data set."""

    name: str
    folder: Path
    missing: tuple[str, ...]
    problem: str | None
    """Why the files that are there cannot be used; None if they can, or if some are missing."""
    sizes: tuple[int, int] | None
    """Images to train on and to test on, if it can be used."""


def dataset_status(name: str) -> Status:
    """Look at the files of a data set without downloading any."""
    files = DATASETS[name]
    folder = data_folder() / files.folder
    missing = files.missing(folder)
    if missing:
        return Status(name, folder, missing, None, None)
    try:
        dataset = load_dataset(name)
    except (ValueError, OSError) as error:
        return Status(name, folder, (), str(error), None)
    return Status(name, folder, (), None, (len(dataset.train), len(dataset.test)))


def load_dataset(name: str) -> Dataset:
    """Read a data set; files that are not there are downloaded first. The result is shared: do not change it."""
    check_name(name)
    files = DATASETS[name]
    folder = data_folder() / files.folder
    for source in files.sources:
        if missing := source.missing(folder):
            others = tuple(file for file in files.missing(folder) if file not in missing)
            _download(source, missing, folder, others)
    return _read(name, folder, tuple((folder / file).stat().st_mtime_ns for s in files.sources for file in s.files))


def check_name(name: str) -> None:
    """Raise an error if there is no data set of this name."""
    if name not in DATASETS:
        raise ValueError(f"there is no data set {name!r}: expected one of {', '.join(DATASETS)}")


@lru_cache(maxsize=2)
def _read(name: str, folder: Path, _changed: tuple[int, ...]) -> Dataset:
    return DATASETS[name].read(folder)


def _download(source: Source, missing: tuple[str, ...], folder: Path, others: tuple[str, ...] = ()) -> None:
    """Fetch a file, check its sum, and lay out what is missing; a file appears whole or not at all.

    others: files that are missing, too.
    """
    archive = source.url.endswith(".tar.gz")
    name = source.url.rsplit("/", 1)[1]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _Bar(name) as bar:
            fetch = pooch.HTTPDownloader(progressbar=bar)
            path = Path(pooch.retrieve(source.url, f"md5:{source.md5}", name, folder, downloader=fetch))
    except (OSError, ValueError) as error:
        # Pooch has a ValueError for a sum that does not match; everything else is the network or the disk.
        status = getattr(getattr(error, "response", None), "status_code", "")
        reason = (
            "its checksum is wrong" if isinstance(error, ValueError) else f"{type(error).__name__} {status}".strip()
        )
        raise FileNotFoundError(
            f"{', '.join(missing)} could not be downloaded ({reason}): get {source.url} by other means and put "
            f"{', '.join(missing)} into {folder}, or set {VARIABLE} to a folder that has {folder.name}"
            + (f"; missing there, too: {', '.join(others)}" if others else "")
        ) from None
    if archive:
        _extract(path, missing, folder)


def _extract(path: Path, files: tuple[str, ...], folder: Path) -> None:
    """Take these files out of an archive, by name, and delete it."""
    try:
        with tarfile.open(path) as tar:
            for file in files:
                member = tar.extractfile(f"{folder.name}/{file}")
                if member is None:
                    raise KeyError(f"{file} is no file")
                part = folder / f".{file}.part"
                part.write_bytes(member.read())
                part.rename(folder / file)
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise BrokenFileError(path, f"it is not the archive expected ({error})") from None
    path.unlink()


class _Bar:
    """A progress bar in the form that pooch calls; it shows nothing where there is no terminal."""

    def __init__(self, name: str) -> None:
        console = Console(stderr=True)
        self.progress = Progress(
            "{task.description}", BarColumn(), DownloadColumn(), console=console, disable=not console.is_terminal
        )
        self.task = self.progress.add_task(name, total=None)
        self.total = 0  # pooch sets it when it knows

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, size: int) -> None:
        """This many bytes more."""
        self.progress.update(self.task, advance=size, total=self.total)

    def reset(self) -> None:
        """From the beginning; pooch does this at the end, to fill the bar once more."""
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        """Nothing: the bar ends with its context."""
