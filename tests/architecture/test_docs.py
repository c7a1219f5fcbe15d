"""Every Python block of README.md and docs/*.md runs, in order, one namespace a file.

A block tagged `python no-run` is compiled only.
"""

import pathlib
import re
import subprocess
import sys
import typing

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)[^)]*\)")


class Block(typing.NamedTuple):
    line: int
    runs: bool
    code: str


def blocks(page: pathlib.Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            line=text.count("\n", 0, match.start(2)),
            runs="no-run" not in match[1],
            code=match[2],
        )
        for match in BLOCK.finditer(text)
    ]


def ids(pages: list[pathlib.Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


WITH_CODE = [page for page in PAGES if blocks(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=ids(WITH_CODE))
def test_code_blocks_run(page: pathlib.Path, tmp_path: pathlib.Path):
    script = ""
    for block in blocks(page):
        compile(block.code, str(page), "exec")
        if block.runs:
            # Blank lines in front: a traceback names the line of the page.
            script += "\n" * (block.line - script.count("\n")) + block.code

    # A process of its own: readers do not have this suite's strict settings.
    (tmp_path / "page.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page: pathlib.Path):
    targets = LINK.findall(page.read_text())

    broken = [target for target in targets if not (page.parent / target).exists()]

    assert not broken
