"""The folder where this user's processes keep files that take long to make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from horoacc import settings


def folder(environ: Mapping[str, str]) -> Path:
    """Finds the folder, which may not be there yet.

    It is `HOROACC_CACHE_DIR`, else `horoacc` in `XDG_CACHE_HOME` if that is an absolute path, else
    in `~/.cache`.
    """
    if given := str(settings.read(environ)["cache_dir"]):
        return Path(given).expanduser()
    # The specification of XDG has relative paths ignored.
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "horoacc"
