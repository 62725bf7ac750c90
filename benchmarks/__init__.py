"""Measures HoroACC against torch's Gloo, Open MPI and MPICH: `make bench`, or
`python -m benchmarks --help`.
"""
