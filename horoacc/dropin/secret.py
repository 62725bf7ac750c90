"""Horovod's secrets between processes, which its users' launch scripts import."""

from __future__ import annotations

import hashlib
import hmac
import secrets

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH_BYTES = 32


def make_secret_key() -> bytes:
    """Makes a secret.

    Returns:
        32 random bytes.
    """
    return secrets.token_bytes(DIGEST_LENGTH_BYTES)


def compute_digest(key: bytes, msg: bytes) -> bytes:
    """Signs a message.

    Args:
        key: The secret.
        msg: The message.

    Returns:
        Its HMAC with SHA-256, 32 bytes.
    """
    return hmac.new(key, msg, hashlib.sha256).digest()


def check_digest(key: bytes, msg: bytes, digest: bytes) -> bool:
    """Says whether a message was signed with a secret.

    Args:
        key: The secret.
        msg: The message.
        digest: The result of `compute_digest`.

    Returns:
        True if so.
    """
    return hmac.compare_digest(compute_digest(key, msg), digest)
