"""Answers of `horovod.common.util` about the build and the installed frameworks."""

from __future__ import annotations

import importlib.util
import sysconfig

from horoacc import builds


def get_ext_suffix() -> str:
    """Gives the file name suffix of compiled modules.

    Returns:
        Such as ".cpython-311-x86_64-linux-gnu.so".
    """
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Says whether there is a frontend for a framework and the framework itself.

    Args:
        ext_base_name: "torch", "tensorflow" or "mxnet".
        verbose: Not looked at.

    Returns:
        True if so.
    """
    del verbose
    both = (f"horoacc.{ext_base_name}", ext_base_name)
    return all(importlib.util.find_spec(name) is not None for name in both)


def check_extension(ext_name: str, *where: str) -> None:
    """Raises if there is no frontend for a framework.

    Args:
        ext_name: Horovod's name of it, such as "horovod.torch".
        where: Where Horovod would look; not needed here.

    Raises:
        ImportError: There is none.
    """
    del where
    framework = ext_name.rpartition(".")[2]
    if not extension_available(framework):
        raise ImportError(f"HoroACC has no frontend for {framework} here", name=ext_name)


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Does nothing: HoroACC builds its framework ops anew for each version of a framework.

    Args:
        name: The framework.
        version: The version that is installed.
        exception: The exception that the caller caught.
    """
    del name, version, exception


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Says whether the collectives take tensors of GPUs.

    Args:
        ext_base_name: The framework.
        verbose: Not looked at.

    Returns:
        The answer of `cuda_built()` for torch; False for others.
    """
    del verbose
    return "torch" in ext_base_name and builds.cuda_built()


def mpi_built(verbose: bool = False) -> bool:
    """As `horoacc.mpi_built`; `verbose` is not looked at."""
    del verbose
    return builds.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """As `horoacc.gloo_built`; `verbose` is not looked at."""
    del verbose
    return builds.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """As `horoacc.nccl_built`; `verbose` is not looked at."""
    del verbose
    return builds.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """As `horoacc.ddl_built`; `verbose` is not looked at."""
    del verbose
    return builds.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """As `horoacc.ccl_built`; `verbose` is not looked at."""
    del verbose
    return builds.ccl_built()
