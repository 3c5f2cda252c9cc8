"""A comparison of fingerprints fails where a recorded one differs, and only there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hashroute.learners import learner_names
from support import import_file

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "experiments" / "results" / "fingerprints.json"


def test_learners_that_are_younger_than_the_record_do_not_fail_it() -> None:
    script = import_file(ROOT / "experiments" / "fingerprint.py")
    recorded = json.loads(RECORDED.read_text())
    assert set(recorded) == set(script.CASES)
    for known in recorded.values():
        assert set(known) <= {*learner_names(), "hrn, no shared head"}
        assert script.verdict(known["vc"], known["vc"]) == "same"
        assert script.verdict(known["vc"], {**known["vc"], "weights": "others"}) == "DIFFERENT"
        assert script.verdict(known.get("someone's own"), known["vc"]) == "not recorded"


def test_there_is_no_comparison_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = import_file(ROOT / "experiments" / "fingerprint.py")
    monkeypatch.setattr(sys, "argv", ["fingerprint.py", "compare", str(tmp_path / "none.json"), "digits"])
    with pytest.raises(FileNotFoundError):
        script.main()
