"""What README shows works as it stands, and what it links to exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_library_example_runs() -> None:
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "HashRoutedNetwork(" in block]
    names: dict[str, object] = {}
    exec(example, names)
    assert len(names["network"].units) == 5


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"


README = (ROOT / "README.md").read_text()
