"""The paper's ablation: what each row changes of the published hash-routed network, and the paper's findings."""

from __future__ import annotations

from typing import Any

SCENARIO = "pairwise-mnist"

ROWS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "no gradient regularisation": {"gradient_regularisation": False},
    "no residue constraint": {"residue_weight": 0.0},
    "no basis update": {"max_age": None},
    "high aging rate": {"aging_rate": 10.0},
    "low basis size": {"basis_size": 2},
    "high feature size": {"features": 500},
    "high depth": {"depth": 4},
}
"""The options that each row changes."""

PAPER_SIGNS = {
    "no gradient regularisation": ("-", "++", "="),
    "no residue constraint": ("--", "+", "="),
    "no basis update": ("-", "--", "++"),
    "high aging rate": ("-", "+", "++"),
    "low basis size": ("--", "+", "++"),
    "high feature size": ("++", "++", "--"),
    "high depth": ("+", "++", "--"),
}
"""The paper's signs for long-term accuracy, best task accuracy and training time. Plus is better: less time."""
