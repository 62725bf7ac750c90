"""README and docs: tables that hold something, figures that were measured, links that lead on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "*/README.md", "csrc/*/README.md")
    for path in ROOT.glob(pattern)
)
MARKED = re.compile(r"<!-- (\w+):begin -->\n(.*?)<!-- \1:end -->", re.DOTALL)
# What `make bench` fills in, and how many rows a whole run gives at least.
FIGURES = {
    ("README.md", "figures"): 12,
    ("docs/benchmarks.md", "machine"): 5,
    ("docs/benchmarks.md", "targets"): 50,
    ("docs/benchmarks.md", "training"): 3,
    ("docs/benchmarks.md", "ddp"): 3,
    ("docs/benchmarks.md", "tensorflow"): 3,
    ("docs/benchmarks.md", "frameworks"): 3,
    ("README.md", "frameworks"): 3,
    ("docs/networks.md", "hosts"): 9,
    ("docs/networks.md", "targets"): 20,
    ("docs/networks.md", "measured"): 20,
}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, the header first, without the line below it."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        header, rule, *rows = block.splitlines()
        assert re.fullmatch(r"\|(?:\s*:?-+:?\s*\|)+", rule.strip()), f"no table: {header}"
        found.append([cells(header), *map(cells, rows)])
        assert len(cells(rule)) == len(found[-1][0]), f"columns of: {header}"
    return found


def figures(page: str, mark: str) -> list[list[str]]:
    (text,) = [body for name, body in MARKED.findall((ROOT / page).read_text()) if name == mark]
    (table,) = tables(text)
    return table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_whole(page: Path) -> None:
    for header, *rows in tables(page.read_text()):
        assert rows, f"an empty table: {header}"
        for row in rows:
            # A bar between two code marks is a bar of the text.
            bars = sum(code.count("|") for code in re.findall(r"`[^`]*`", "|".join(row)))
            assert len(row) - bars == len(header), row
            assert any(row), f"an empty row below {header}"


@pytest.mark.parametrize(("page", "mark"), FIGURES)
def test_figures_were_measured(page: str, mark: str) -> None:
    header, *rows = figures(page, mark)
    assert len(rows) >= FIGURES[page, mark], f"{len(rows)} rows below {header}"
    for row in rows:
        # The last column of targets is a remark.
        wanted = row[:-1] if header[-1] == "" else row
        assert all(cell not in ("", "-") for cell in wanted), row
    if mark in ("figures", "training", "ddp"):
        for row in rows:
            assert all(re.match(r"\d", cell) for cell in row[1:]), row


def test_every_marked_table_is_checked() -> None:
    found = {
        (str(page.relative_to(ROOT)), name)
        for page in PAGES
        for name, _ in MARKED.findall(page.read_text())
    }
    assert found == set(FIGURES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not re.match(r"\w+:", target):
            path = page.parent / target
            assert path.exists(), target
            assert path.is_dir() or path.stat().st_size > 0, target
