"""The errors of HoroACC, as types that a script written for Horovod already catches.

A collective either gives the right result on every rank, or raises one of these on every rank.
Elastic jobs catch `HorovodInternalError`; `ValueError` is a bad argument of this rank.
"""

from __future__ import annotations

__all__ = [
    "Aborted",
    "ConfigError",
    "HoroaccError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InvalidArgument",
    "Mismatch",
    "NotInitialized",
    "PeerLost",
    "RankFailed",
    "ShutDown",
    "SystemFailure",
    "Timeout",
    "Unsupported",
    "from_core",
]


class HoroaccError(Exception):
    """The base of every error that the core reports.

    Attributes:
        culprit: The rank that caused it, or None if no single rank did.
        host: The name of the culprit's host, or None if it is not known.
        tensor: The name of the tensor of the call that failed, or None if no call did.
        collective: The number of that call among those that the ranks of its process set have
            agreed on, from 1 and alike on all ranks; of a call that they had not, the next number.
            None if it is not known.
        hint: The next thing to look at, or None.
    """

    culprit: int | None
    host: str | None
    tensor: str | None
    collective: int | None
    hint: str | None

    def __init__(
        self,
        message: str = "",
        culprit: int | None = None,
        *,
        host: str | None = None,
        tensor: str | None = None,
        collective: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.culprit = culprit
        self.host = host
        self.tensor = tensor
        self.collective = collective
        self.hint = hint


class HorovodInternalError(RuntimeError):
    """A collective failed. Horovod's name for it, which elastic scripts catch."""


class Mismatch(HoroaccError, HorovodInternalError):
    """The ranks disagree about a tensor: its type, shape, operation, scale, root or splits."""


class InvalidArgument(HoroaccError, ValueError):
    """This rank passed something that no collective can work with."""


class NotInitialized(InvalidArgument):
    """`init()` was not called, or `shutdown()` was."""


class PeerLost(HoroaccError, HorovodInternalError):
    """Another rank died or left the job."""


class Timeout(HoroaccError, HorovodInternalError):
    """A deadline passed before the other ranks did their part."""


class Aborted(HoroaccError, HorovodInternalError):
    """The job was shut down, or aborted by another rank, while this was in flight."""


class ShutDown(Aborted, NotInitialized):
    """A collective was called after `shutdown()`; elastic scripts catch it, as Horovod's."""


class ConfigError(HoroaccError, RuntimeError, ValueError):
    """A setting, or the environment that the job was started in, cannot work."""


class SystemFailure(HoroaccError, HorovodInternalError):
    """The operating system refused something."""


class Unsupported(HoroaccError, NotImplementedError, ValueError):
    """The operation has no meaning for this type of tensor, or does not exist here."""


class RankFailed(HoroaccError, RuntimeError):
    """A rank of `horoacc.run` ended without a result, or its exception cannot be pickled."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed; raised in elastic jobs between two batches.

    Attributes:
        skip_sync: Whether the state need not be synchronised before going on.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework's ops were built against another version of it than the installed one.

    Attributes:
        name: The framework.
        version: The version that the ops were built against.
        installed_version: The version that is there.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(
            f"the ops were built against {name} {version}, but {name} {installed_version} is "
            "installed",
            name=name,
        )
        self.version = version
        self.installed_version = installed_version


# By ha_error_kind of csrc/api/horoacc.h.
_KINDS: dict[int, type[HoroaccError]] = {
    1: Mismatch,
    2: InvalidArgument,
    3: PeerLost,
    4: Timeout,
    5: Aborted,
    6: ConfigError,
    7: SystemFailure,
    8: Unsupported,
}


def from_core(
    kind: int,
    message: str,
    culprit: int = -1,
    host: str = "",
    tensor: str = "",
    collective: int = -1,
    hint: str = "",
) -> HoroaccError:
    """Makes the exception for an error of the core.

    Args:
        kind: A number of `ha_error_kind`.
        message: The core's text.
        culprit: The rank that caused it, or -1.
        host: Its host, or "".
        tensor: The tensor of the call that failed, or "".
        collective: The number of that call, or -1.
        hint: The next thing to look at, or "".

    Returns:
        The exception, not raised yet.
    """
    return _KINDS.get(int(kind), SystemFailure)(
        message,
        None if culprit < 0 else culprit,
        host=host or None,
        tensor=tensor or None,
        collective=None if collective < 0 else collective,
        hint=hint or None,
    )
