"""A rank whose function a `courier` brings. A small file: each rank waits for what it imports."""

from __future__ import annotations

from horoacc.launcher.courier import open_post
from horoacc.launcher.function_rank import call


def main() -> None:
    """Calls the function that the courier of this host has. Raises its exception."""
    post = open_post()
    call(post.call, post.path, post.send)
