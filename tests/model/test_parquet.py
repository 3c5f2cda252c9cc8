"""Lists in Parquet. `make test-extras` installs pyarrow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hashroute import Model
from kept_models import write_shapes


def test_a_list_in_parquet_is_learned_like_its_folder(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs the extra parquet: make test-extras")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet: make test-extras")
    folder = write_shapes(tmp_path / "round", "circle", "cross")
    files = sorted(folder.rglob("*.png"))
    columns = {
        "label": [file.parent.name for file in files],
        "path": [str(file.relative_to(tmp_path)) for file in files],
        "split": ["test" if place % 6 == 0 else "train" for place in range(len(files))],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "round.parquet")
    report = Model(tmp_path / "model").learn(tmp_path / "round.parquet", epochs=2)
    assert (report.task, report.classes) == ("round", ("circle", "cross"))
    assert (report.images, report.held_out) == (40, 8)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "round.parquet").read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"^[^\n]*cut.parquet cannot be read as Parquet[^\n]*$"):
        Model(tmp_path / "model").learn(tmp_path / "cut.parquet")


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "list.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"^[^\n]*needs pyarrow: pip install 'hashroute\[parquet\]', or convert"):
        Model(tmp_path / "model").learn(tmp_path / "list.parquet")
