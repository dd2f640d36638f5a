"""The README's claims about the repository itself."""

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_first_environment_has_at_most_25_lines():
    (code,) = re.findall(
        r'^```python title="count_files\.py"\n(.*?)^```', README.read_text(), re.MULTILINE | re.DOTALL
    )
    body = code.split('if __name__ == "__main__"')[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 25


def test_every_page_the_readme_points_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
    assert Path(README.parent / "LICENSE").read_text().startswith("MIT License")
