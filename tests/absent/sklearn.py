"""Fails as if scikit-learn were not installed (conftest.py says why)."""

raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)
