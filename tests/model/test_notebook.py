"""In a notebook, learning shows a bar that moves, and a model shows its tasks. `make test-extras` installs Jupyter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CELLS = (
    "import numpy as np\nfrom hashroute import Model\n"
    "images = np.random.default_rng(0).random((40, 8, 8))\nmodel = Model('kept')\nmodel",
    "model.learn((images, [0, 1] * 20), '<i>noise</i>', epochs=3);",
    "model",
)


@pytest.mark.filterwarnings("default")  # of libraries for notebooks
def test_a_notebook_shows_progress_and_tasks(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel", reason="needs ipykernel: make test-extras")
    client = pytest.importorskip("nbclient", reason="needs nbclient: make test-extras")
    from nbformat.v4 import new_code_cell, new_notebook

    notebook: Any = new_notebook(cells=[new_code_cell(cell) for cell in CELLS])
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    empty, bar, table = (cell.outputs for cell in notebook.cells)
    assert empty[0].data["text/html"] == "<p>kept: nothing was learned yet</p>"
    (shown,) = bar  # one place, which is drawn again and again; no warning
    assert shown.data["text/html"].startswith(
        '<div>hrn learns &lt;i&gt;noise&lt;/i&gt; <progress value="108" max="108"'
    )
    assert shown.data["text/plain"].startswith("hrn learns <i>noise</i>: 100 %, ")
    assert "<th>held-out accuracy</th>" in table[0].data["text/html"]
    assert "<td>&lt;i&gt;noise&lt;/i&gt;</td><td>0, 1</td><td>36</td>" in table[0].data["text/html"]
