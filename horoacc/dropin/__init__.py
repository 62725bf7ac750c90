"""`import horovod` gives HoroACC, for `install_as_horovod()` and `horoaccrun --as-horovod`.

`names` is the one table from Horovod's names to HoroACC's objects, `finder` answers imports with
it, and `startup` is the folder on PYTHONPATH by which child processes get the finder.
`average`, `basics_object`, `extensions`, `pieces`, `threads`, `variables` and `versions` are
Horovod's modules beside its API.
"""

from horoacc.dropin.install import for_children, install_as_horovod, installed

__all__ = ["for_children", "install_as_horovod", "installed"]
