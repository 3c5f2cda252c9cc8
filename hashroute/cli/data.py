"""hashroute data: list and download the image data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import UNSET, say


@dataclass(frozen=True)
class DataSettings:
    """Data sets to download."""

    download: Annotated[tyro.conf.Positional[tuple[str, ...]], UNSET] = ()
    """Data sets to download if they are missing, by name; `all` for all of them."""


def run_data(settings: DataSettings, console: Console) -> None:
    """Download what is asked for, then list all data sets."""
    from rich.table import Table
    from rich.text import Text

    from hashroute.data import DATASETS, check_name, data_folder, dataset_status, load_dataset
    from hashroute.data.files import VARIABLE

    names = tuple(DATASETS) if "all" in settings.download else settings.download
    for name in names:
        check_name(name)
    for name in names:
        load_dataset(name)
    table = Table("data set", "status", header_style="")
    for name in DATASETS:
        status = dataset_status(name)
        if status.sizes:
            text = "{:,} training images, {:,} test images".format(*status.sizes)
            if status.differing:
                text += f"; not the published files: {', '.join(status.differing)}"
        else:
            text = status.problem or f"missing: {', '.join(status.missing)}; download it with: hashroute data {name}"
        table.add_row(name, Text(text))
    console.print(table)
    say(console, f"folder: {data_folder()} (set {VARIABLE} to use another one)")
