"""README and docs: figures that were measured, links that lead somewhere."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "*/README.md", "csrc/**/README.md")
    for path in ROOT.glob(pattern)
)
MARKED = re.compile(r"<!-- (\w+):begin -->\n(.*?)<!-- \1:end -->", re.DOTALL)
# A file that a page names: `csrc/base/log.h`, `base/log.h` or `log.h`.
NAMED_FILE = re.compile(r"`([\w./-]+\.(?:cc|h|cu|cuh|py|pyi|md|sh|toml|txt))`")
FOLDERS = (
    "csrc", "torch_ops", "tensorflow_ops", "horoacc", "launcher", "tests", "benchmarks", "docs",
    "examples",
)  # fmt: skip
# What builds, runs and other projects make, which is not in the tree.
NOT_OURS = {"mpi.h", "include/mpi.h", "bench/table.txt", "verdicts.txt", "bounds.txt", "table.md"}
# What `make bench` fills in, and how many rows a whole run gives at least.
FIGURES = {
    ("README.md", "figures"): 12,
    ("README.md", "frameworks"): 3,
    ("docs/benchmarks.md", "machine"): 5,
    ("docs/benchmarks.md", "targets"): 50,
    ("docs/benchmarks.md", "training"): 3,
    ("docs/benchmarks.md", "ddp"): 3,
    ("docs/benchmarks.md", "frameworks"): 3,
    ("docs/benchmarks.md", "tensorflow"): 3,
    ("docs/networks.md", "targets"): 20,
    ("docs/networks.md", "hosts"): 9,
    ("docs/networks.md", "measured"): 20,
}


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def ends_of_paths() -> set[str]:
    """Every file of the tree by each end of its path: `csrc/base/log.h`, `base/log.h`, `log.h`."""
    files = [*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    paths = [path.relative_to(ROOT).parts for path in files if path.is_file()]
    return {"/".join(parts[at:]) for parts in paths for at in range(len(parts))}


@functools.cache
def anchors(page: Path) -> set[str]:
    """The names by which links lead to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


@pytest.mark.parametrize(("page", "mark"), FIGURES)
def test_figures_were_measured(page: str, mark: str) -> None:
    (body,) = [text for name, text in MARKED.findall((ROOT / page).read_text()) if name == mark]
    header, _, *rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in body.splitlines()
    ]
    assert len(rows) >= FIGURES[page, mark], header
    for row in rows:
        assert len(row) == len(header), row
        # The last column of targets is a remark.
        wanted = row[:-1] if header[-1] == "" else row
        assert all(cell not in ("", "-") for cell in wanted), row
        if mark in ("figures", "training", "ddp"):
            assert all(re.match(r"\d", cell) for cell in row[1:]), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        assert path.is_dir() or path.stat().st_size > 0, link
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    named = set(NAMED_FILE.findall(prose(page))) - NOT_OURS
    gone = {name for name in named - ends_of_paths() if not (page.parent / name).exists()}
    assert not gone
