"""torch.compile of the units of a path, as the guide to accelerators says: the same answers."""

from __future__ import annotations

import shutil

import pytest
import torch

from support import assert_same, digits, learned


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler")
def test_compiled_units_give_the_same_answers() -> None:
    eager, compiled = learned("hrn"), learned("hrn")
    images = digits().tasks[1].test.images[:40]
    for path in compiled.encoder.paths:
        for unit in path:
            unit.compile()
    for task in (0, 1):
        torch.testing.assert_close(compiled.logits(images, task), eager.logits(images, task), rtol=1e-5, atol=1e-5)
    with torch._dynamo.config.patch(error_on_recompile=True):  # what was compiled is used
        assert compiled.predict(images, 1).tolist() == eager.predict(images, 1).tolist()
    assert_same(eager, compiled)  # weights and their names stay
