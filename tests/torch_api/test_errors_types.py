"""Errors are those that Horovod's scripts catch."""

from __future__ import annotations

import pytest

from horoacc import errors

KINDS = {
    1: (errors.Mismatch, (errors.HorovodInternalError, RuntimeError)),
    2: (errors.InvalidArgument, (ValueError,)),
    3: (errors.PeerLost, (errors.HorovodInternalError, RuntimeError)),
    4: (errors.Timeout, (errors.HorovodInternalError, RuntimeError)),
    5: (errors.Aborted, (errors.HorovodInternalError, RuntimeError)),
    6: (errors.ConfigError, (RuntimeError, ValueError)),
    7: (errors.SystemFailure, (errors.HorovodInternalError,)),
    8: (errors.Unsupported, (NotImplementedError, ValueError)),
    99: (errors.SystemFailure, (errors.HorovodInternalError,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: int) -> None:
    wanted, bases = KINDS[kind]
    error = errors.from_core(kind, "what happened", 3)
    assert type(error) is wanted
    assert str(error) == "what happened"
    assert error.culprit == 3
    for base in (*bases, errors.HoroaccError):
        assert isinstance(error, base)
    assert errors.from_core(kind, "").culprit is None


def test_bad_arguments_are_not_retried_by_elastic_jobs() -> None:
    assert not issubclass(errors.InvalidArgument, errors.HorovodInternalError)
    assert not issubclass(errors.ConfigError, errors.HorovodInternalError)
    assert issubclass(errors.NotInitialized, ValueError)
    assert not issubclass(errors.NotInitialized, errors.HorovodInternalError)


def test_version_mismatch_is_horovods() -> None:
    error = errors.HorovodVersionMismatchError("torch", "2.13.0", "2.14.1")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "2.13.0", "2.14.1")
    assert "2.13.0" in str(error) and "2.14.1" in str(error)
