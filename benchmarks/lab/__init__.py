"""A network of several hosts on one machine; see README.md."""

from benchmarks.lab.laboratory import Host, Laboratory, LaboratoryError
from benchmarks.lab.network import Network
from benchmarks.lab.possible import missing

__all__ = ["Host", "Laboratory", "LaboratoryError", "Network", "missing"]
