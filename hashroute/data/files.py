"""The files of data sets: where they lie, and how to download those that are missing."""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from hashroute.data.readers import BrokenFileError
from hashroute.storage import digest_of

VARIABLE = "HASHROUTE_DATA"


@dataclass(frozen=True)
class Source:
    """A file to download, and the data files that it provides."""

    url: str
    sha256: str
    files: tuple[str, ...]
    """Relative to the folder of the data set. An archive provides several."""
    plain_url: str = ""
    """Where it is without HTTPS, if HTTPS fails: the sum is checked there, too."""
    md5: tuple[str, ...] = ()
    """Of the files in an archive, as published."""

    def missing(self, folder: Path) -> tuple[str, ...]:
        """The files that are not in this folder."""
        return tuple(file for file in self.files if not (folder / file).exists())

    def differing(self, folder: Path) -> tuple[str, ...]:
        """The files in this folder that are not those that were published, as far as their sums are known."""
        kind, sums = ("md5", self.md5) if self.md5 else ("sha256", (self.sha256,))
        pairs = zip(self.files, sums, strict=True) if len(self.files) == len(sums) else ()
        return tuple(file for file, expected in pairs if digest_of(folder / file, kind) != expected)


def data_folder() -> Path:
    """The folder of all data sets: HASHROUTE_DATA, or else a folder in the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    import pooch  # slow to import

    return Path(pooch.os_cache("hashroute")) / "data"


def download(source: Source, missing: tuple[str, ...], folder: Path, others: tuple[str, ...] = ()) -> None:
    """Download a file, check its sum and store the missing data files; a file appears complete or not at all.

    others: further files that are missing, for the error message.
    """
    import pooch  # slow to import

    pooch.get_logger().setLevel("WARNING")
    name = source.url.rsplit("/", 1)[1]
    folder.mkdir(parents=True, exist_ok=True)
    for url in filter(None, (source.url, source.plain_url)):
        try:
            with _Bar(name) as bar:
                fetch = pooch.HTTPDownloader(progressbar=bar)
                path = Path(pooch.retrieve(url, f"sha256:{source.sha256}", name, folder, downloader=fetch))
            break
        except ValueError:
            reason = "its checksum is wrong"
        except OSError as error:  # of the network or the disk
            status = getattr(getattr(error, "response", None), "status_code", "")
            reason = f"{type(error).__name__} {status}".strip()
    else:
        raise FileNotFoundError(
            f"{', '.join(missing)} could not be downloaded ({reason}): download {source.url} yourself and put "
            f"{', '.join(missing)} into {folder}, or set {VARIABLE} to a folder that contains {folder.name}"
            + (f"; also missing: {', '.join(others)}" if others else "")
        )
    if name.endswith(".tar.gz"):
        _extract(path, missing, folder)


def _extract(path: Path, files: tuple[str, ...], folder: Path) -> None:
    """Take these files out of an archive, then delete the archive."""
    try:
        with tarfile.open(path) as tar:
            for file in files:
                member = tar.extractfile(f"{folder.name}/{file}")
                if member is None:
                    raise KeyError(f"{file} is not a file")
                part = folder / f".{file}.part"
                part.write_bytes(member.read())
                part.rename(folder / file)
    except (KeyError, tarfile.TarError, EOFError) as error:
        raise BrokenFileError(path, f"it is not the expected archive ({error})") from None
    path.unlink()


class _Bar:
    """A progress bar with the methods that pooch calls. It shows nothing where there is no terminal."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress

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
        """Advance by this many bytes."""
        self.progress.update(self.task, advance=size, total=self.total)

    def reset(self) -> None:
        """Start again from zero. pooch calls this at the end, before it fills the bar."""
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        """Do nothing: the bar ends with its context."""
