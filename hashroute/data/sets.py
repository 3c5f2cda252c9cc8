"""The data sets: what belongs to each of them, and loading them by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hashroute.data.files import Source, data_folder, download
from hashroute.data.readers import Dataset, read_cifar_names, read_cifar_split, read_idx_split, read_svhn_split
from hashroute.tasks import Augmentation

DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


@dataclass(frozen=True)
class DatasetSpec:
    """Everything that belongs to a data set."""

    folder: str
    sources: tuple[Source, ...]
    read: Callable[[Path], Dataset]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Of the training pixels, from 0 to 1, per channel, as published."""
    augmentations: tuple[Augmentation, ...]
    """Changes of an image that keep its label."""

    def missing(self, folder: Path) -> tuple[str, ...]:
        """The files of all sources that are not in this folder."""
        return tuple(file for source in self.sources for file in source.missing(folder))


def _idx_sources(base: str, sums: tuple[str, str, str, str], plain: str = "") -> tuple[Source, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(
        Source(base + name, digest, (name,), plain and plain + name) for name, digest in zip(names, sums, strict=True)
    )


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


def _svhn_source(name: str, sha256: str) -> Source:
    place = f"://ufldl.stanford.edu/housenumbers/{name}"
    return Source(f"https{place}", sha256, (name,), f"http{place}")


DATASETS = {
    "mnist": DatasetSpec(
        "mnist",
        _idx_sources(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        _read_idx(DIGITS),
        mean=(0.1307,),
        std=(0.3081,),
        augmentations=("shift",),
    ),
    "fashion-mnist": DatasetSpec(
        "fashion-mnist",
        _idx_sources(
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
            plain="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        _read_idx(GARMENTS),
        mean=(0.2860,),
        std=(0.3530,),
        augmentations=("flip", "shift"),
    ),
    "cifar-100": DatasetSpec(
        "cifar-100-python",
        (
            Source(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                ("train", "test", "meta"),
                md5=(
                    "16019d7e3df5f24257cddd939b257f8d",
                    "f0ef6b0ae62326f3e7ffdfab6717acfc",
                    "7973b15100ade9c7d40fb424638fde48",
                ),
            ),
        ),
        _read_cifar,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        augmentations=("flip", "shift"),
    ),
    "svhn": DatasetSpec(
        "svhn",
        (
            _svhn_source("train_32x32.mat", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
            _svhn_source("test_32x32.mat", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
        ),
        _read_svhn,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        augmentations=("shift",),
    ),
}


@dataclass(frozen=True)
class Status:
    """The state of a data set's files."""

    name: str
    folder: Path
    missing: tuple[str, ...]
    problem: str | None
    """Why the files cannot be used; None if they can, or if some are missing."""
    sizes: tuple[int, int] | None
    """Numbers of training and test images, if the files can be used."""
    differing: tuple[str, ...] = ()
    """Files that can be used, and are not those that were published."""


def dataset_status(name: str) -> Status:
    """Check the files of a data set without downloading any."""
    spec = DATASETS[name]
    folder = data_folder() / spec.folder
    missing = spec.missing(folder)
    if missing:
        return Status(name, folder, missing, None, None)
    try:
        dataset = load_dataset(name)
    except (ValueError, OSError) as error:
        return Status(name, folder, (), str(error), None)
    return Status(name, folder, (), None, (len(dataset.train), len(dataset.test)), differing_files(name))


def differing_files(name: str) -> tuple[str, ...]:
    """The files of a data set that are not those that were published, by their sums."""
    folder = data_folder() / DATASETS[name].folder
    return tuple(file for source in DATASETS[name].sources for file in source.differing(folder))


def load_dataset(name: str) -> Dataset:
    """Read a data set; missing files are downloaded first. Callers share the result and must not change it."""
    check_name(name)
    spec = DATASETS[name]
    folder = data_folder() / spec.folder
    for source in spec.sources:
        if missing := source.missing(folder):
            others = tuple(file for file in spec.missing(folder) if file not in missing)
            download(source, missing, folder, others)
    return _read(name, folder, tuple((folder / file).stat().st_mtime_ns for s in spec.sources for file in s.files))


def check_name(name: str) -> None:
    """Raise an error if there is no data set with this name."""
    if name not in DATASETS:
        raise ValueError(f"there is no data set {name!r}: expected one of {', '.join(DATASETS)}")


@lru_cache(maxsize=2)
def _read(name: str, folder: Path, _changed: tuple[int, ...]) -> Dataset:
    return DATASETS[name].read(folder)
