"""The job's secret, which a rank takes out of its environment: what it starts shall not have it."""

from __future__ import annotations

import hashlib
import os

from horoacc.launcher.shim import SECRET_FILE, SECRET_FILE_NAME

_VARIABLE = "HOROACC_SECRET"


class _Kept:
    text = ""


def environ() -> dict[str, str]:
    """This process's variables, with the secret that it has or had; that is in no other's now.

    The secret comes in a memory file of the launcher's, or where there is none in a variable. A
    process that joins a job again has the secret that it had, unless it was given another.
    """
    place = os.environ.get(SECRET_FILE, "")
    if place and (text := _read(place)):
        del os.environ[SECRET_FILE]
        _Kept.text = text
    _Kept.text = os.environ.pop(_VARIABLE, "") or _Kept.text
    return {**os.environ, **({_VARIABLE: _Kept.text} if _Kept.text else {})}


def job_name(secret: str) -> str:
    """Gives a name of the job that has a secret, which does not tell the secret; "" without one."""
    return hashlib.sha256(f"name {secret}".encode()).hexdigest()[:16] if secret else ""


def _read(place: str) -> str:
    """Reads the file that PID:FD names, and closes it here; nothing if it cannot be read.

    Every process that the launcher starts inherits it under the number FD. A program between may
    have closed it, or have opened another file in its place; PID still has it.
    """
    pid, _, fd = place.partition(":")
    if not (pid.isdecimal() and fd.isdecimal()):
        return ""
    for process in ("self", pid):
        path = f"/proc/{process}/fd/{fd}"
        try:
            if os.readlink(path) != f"/memfd:{SECRET_FILE_NAME} (deleted)":
                continue
            with open(path, encoding="ascii") as file:
                text = file.read()
        except OSError:
            continue
        if process == "self":
            os.close(int(fd))
        return text
    return ""
