"""How processes of one job that share no secret yet know each other, over any connection.

A *seal* makes text that only they can read or make: munged's, which each node of a Slurm cluster
runs and which knows a process's user; or, where the job has a secret, an HMAC with it.
"""

from __future__ import annotations

import ctypes
import hmac
import json
import os
from collections.abc import Mapping
from typing import Any, Protocol

from horoacc.launcher.environment.placement import PlacementError

_UID_RESTRICTION = 9  # munge.h: MUNGE_OPT_UID_RESTRICTION


class Seal(Protocol):
    """Makes sealed messages and opens them."""

    def close(self, message: Mapping[str, Any]) -> bytes:
        """A line, without its end, that says the message; OSError: it cannot be made."""

    def open(self, line: bytes) -> dict[str, Any]:
        """The message of a line; ValueError if none of this job's user and secret made it."""


class SecretSeal:
    """A seal by the job's secret. What it closes can be read by everybody."""

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()

    def close(self, message: Mapping[str, Any]) -> bytes:
        """Adds an HMAC."""
        text = json.dumps(message).encode()
        return self._mark(text) + text

    def open(self, line: bytes) -> dict[str, Any]:
        """Checks the HMAC."""
        mark, text = line[:64], line[64:]
        if not hmac.compare_digest(mark, self._mark(text)):
            raise ValueError("another secret")
        return dict(json.loads(text))

    def _mark(self, text: bytes) -> bytes:
        return hmac.new(self._key, b"seal" + text, "sha256").hexdigest().encode()


class MungeSeal:
    """A seal by the cluster's munged: only processes of this user on its nodes can open it."""

    def __init__(self) -> None:
        """Raises OSError if munge's library is not here."""
        library = ctypes.CDLL("libmunge.so.2", use_errno=True)
        library.munge_ctx_create.restype = ctypes.c_void_p
        library.munge_strerror.restype = ctypes.c_char_p
        self._library = library
        self._libc = ctypes.CDLL(None)

    def close(self, message: Mapping[str, Any]) -> bytes:
        """Has munged encrypt it."""
        text = json.dumps(message).encode()
        context = ctypes.c_void_p(self._library.munge_ctx_create())
        line = ctypes.c_void_p()
        try:
            uid = ctypes.c_uint(os.getuid())
            self._library.munge_ctx_set(context, _UID_RESTRICTION, uid)
            code = self._library.munge_encode(ctypes.byref(line), context, text, len(text))
            if code:
                raise OSError(0, f"munge: {self._why(code)}")
            return ctypes.string_at(line)
        finally:
            self._libc.free(line)
            self._library.munge_ctx_destroy(context)

    def open(self, line: bytes) -> dict[str, Any]:
        """Has munged decrypt it, which it does once."""
        text, size = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint(), ctypes.c_uint()
        out = map(ctypes.byref, (text, size, uid, gid))
        code = self._library.munge_decode(line, None, *out)
        try:
            if code or uid.value != os.getuid():
                raise ValueError(self._why(code) if code else "another user")
            return dict(json.loads(ctypes.string_at(text, size.value)))
        finally:
            self._libc.free(text)

    def _why(self, code: int) -> str:
        return str(self._library.munge_strerror(code).decode())


def seal_of(secret: str, where: str) -> Seal:
    """The seal of a job: by its secret if it has one, else munge's.

    Args:
        secret: The job's, or "".
        where: What the job is, for an error.

    Raises:
        PlacementError: It has no secret, and there is no munge.
    """
    if secret:
        return SecretSeal(secret)
    try:
        seal = MungeSeal()
        seal.close({})
        return seal
    except OSError as error:
        raise PlacementError(
            f"the ranks of {where} need a secret that only they know, and munge, which would give "
            f"them one, is not to be had here ({error}): start them with horoaccrun, or put "
            "`export HOROACC_SECRET=$(openssl rand -hex 32)` before srun"
        ) from None
