"""The paper's ablation has the paper's rows, and is kept and continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hashroute.learners import find_learner
from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.training.ablation import PAPER_SIGNS, ROWS, SCENARIO
from hashroute.training.result import Comparison
from hashroute.training.run import learner_options
from support import is_here

Command = Callable[..., tuple[int, str, str]]
RESULTS = Path(__file__).parents[2] / "results" / "ablation.json"


def test_the_ablation_has_the_papers_seven_rows_and_is_committed() -> None:
    assert len(PAPER_SIGNS) == 7
    assert list(ROWS) == ["baseline", *PAPER_SIGNS]
    kind = find_learner("hrn-paper")
    published = learner_options("hrn-paper", SCENARIO, "paper", (1, 28, 28))
    committed = Comparison.read(RESULTS)
    assert list(committed.learners) == list(ROWS)
    for name, change in ROWS.items():
        options = options_to_dict(options_from_dict(kind, {**published, **change}))
        assert all(kind.saved_options(run.options) == options for run in committed.learners[name]), name


@pytest.mark.skipif(not is_here("mnist"), reason="MNIST is not here")
def test_an_ablation_is_kept_and_continued(hashroute_command: Command, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "ablation.json"
    command = ("ablate", "--fraction", "0.002", "--seeds", "1", "--output", output)
    code, printed, _ = hashroute_command(*command)
    assert code == 0
    found = Comparison.read(output)
    assert list(found.learners) == list(ROWS)
    assert all(len(runs) == 1 for runs in found.learners.values())
    assert "no residue constraint" in printed
    assert hashroute_command(*command)[0] == 0
    assert Comparison.read(output) == found
