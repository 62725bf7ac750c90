"""`horoaccrun report [JOB or FOLDER]`: a trace of all ranks, and a page that says what it shows."""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from horoacc.launcher.explain import RecordError, explain
from horoacc.launcher.flight_records import read_records
from horoacc.launcher.look import recording, story
from horoacc.launcher.look.asking import Scope, View
from horoacc.launcher.look.jobs import LookError
from horoacc.launcher.look.shares import Path as CriticalPath
from horoacc.launcher.look.shares import Work, path, work
from horoacc.launcher.look.spans import calls_of
from horoacc.launcher.look.table import COLUMNS, picture
from horoacc.launcher.look.trace import trace

__all__ = ["main"]

_EVERYTHING = Scope(seconds=math.inf, events=1 << 30)
_COLOURS = {
    "compute": "#4c9f70", "waits for others": "#d1495b", "negotiation": "#edae49",
    "reduction": "#30638e",
}  # fmt: skip
_WIDTH = 600
_SECONDS = 60.0
_STYLE = (
    "body{font:15px sans-serif;margin:2em;max-width:70em}td,th{padding:.2em .7em;text-align:right}"
    "td{font-family:monospace}.amiss{color:#d1495b;font-weight:bold}svg{vertical-align:middle}"
)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line after `report`; 1 if there is nothing to report."""
    parser = argparse.ArgumentParser(
        prog="horoaccrun report",
        description="Writes what the ranks did lately: trace.json for ui.perfetto.dev, and "
        "index.html. Of a running job, or of the records in a folder.",
    )
    parser.add_argument("job", nargs="?", help="as of `horoaccrun explain`")
    parser.add_argument("--output", default="report", metavar="FOLDER", help="where to; report")
    given = parser.parse_args(arguments)
    try:
        before, view, said = _view(given.job)
        done = work(view, _SECONDS)
        folder = Path(given.output)
        folder.mkdir(parents=True, exist_ok=True)
        merged = trace(done, dict(view.records))
        (folder / "trace.json").write_text(json.dumps(merged))
        _write_recording(view, folder)
        (folder / "index.html").write_text("".join(_page(before, view, done, said)))
    except (RecordError, LookError) as error:
        print(f"horoaccrun report: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"horoaccrun report: {given.output}: {error.strerror or error}", file=sys.stderr)
        return 1
    written = [name for name in ("index.html", "trace.json", recording.FILE)
               if (folder / name).exists()]  # fmt: skip
    print(", ".join(str(folder / name) for name in written))
    return 0


def _write_recording(view: View, folder: Path) -> None:
    """What `horoaccrun replay` takes, if all ranks have told of a whole step."""
    file = folder / recording.FILE
    file.unlink(missing_ok=True)
    if len(view.records) == view.size:
        hosts = [record.host for record in view.records.values()]
        with contextlib.suppress(recording.RecordingError):
            calls = calls_of(view.records, math.inf, view.scope.events)
            file.write_text(recording.recorded(calls, hosts).text())


def _view(job: str | None) -> tuple[View | None, View, list[str]]:
    """What there is of a job, and what `explain` says of it."""
    if job is None or not Path(job).is_dir():
        before, view, said = story.look(job)
        if view.no_ranks:
            raise LookError(said[0])
        return before, view, said
    said = explain(Path(job))
    records, _ = read_records(Path(job))
    if not records:
        raise RecordError(f"there are no records (rank.N.json) in {job}")
    size = max(record.size for record in records.values())
    missing = {rank: "left no record" for rank in range(size) if rank not in records}
    return None, View(job, size, records, missing, _EVERYTHING), said


def _page(before: View | None, view: View, done: Work, said: Sequence[str]) -> Iterator[str]:
    shown = picture(view, before)
    title = html.escape(f"HoroACC: job {view.job}")
    yield f"<!DOCTYPE html><html><head><meta charset='utf-8'><title>{title}</title>"
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
    yield f"<p>{time.strftime('%Y-%m-%d %H:%M:%S')}, over the last {done.seconds:.1f} s</p><ul>"
    yield from (f"<li>{html.escape(line)}</li>" for line in said)
    yield "</ul><h2>Critical path over all ranks</h2><p>"
    yield from _bar(_parts(path(done)))
    yield "</p><h2>Ranks</h2><p>"
    for name, colour in _COLOURS.items():
        yield f"<span style='color:{colour}'>&#9632;</span> {name} &nbsp; "
    yield "</p><table>"
    for rank, own in done.shares.items():
        waits = sum(own.waiting.values())
        parts = zip(_COLOURS, (own.compute, waits, own.negotiate, own.reduce), strict=True)
        yield f"<tr><th>rank {rank}</th><td>"
        yield from _bar(dict(parts))
        yield "</td></tr>"
    heads = "".join(f"<th>{name}</th>" for name in COLUMNS)
    yield f"</table><table><tr>{heads}</tr>"
    for row in shown.rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells)
        yield f"<tr{' class=amiss' if row.amiss else ''}>{cells}</tr>"
    yield "</table><p>Open <a href='trace.json'>trace.json</a> at ui.perfetto.dev.</p>"
    yield "</body></html>\n"


def _parts(whole: CriticalPath) -> dict[str, float]:
    values = (whole.compute, sum(whole.straggle.values()), whole.negotiate, whole.reduce)
    return dict(zip(_COLOURS, values, strict=True))


def _bar(parts: dict[str, float]) -> Iterator[str]:
    """A bar of coloured parts, each with its share as a title."""
    yield f"<svg width='{_WIDTH}' height='18'>"
    at = 0.0
    for name, part in parts.items():
        width = part * _WIDTH
        yield f"<rect x='{at:.1f}' width='{width:.1f}' height='18' fill='{_COLOURS[name]}'>"
        yield f"<title>{name}: {part:.1%}</title></rect>"
        at += width
    yield "</svg>"
