"""The same kills for jobs of HoroACC, torchrun and torchft; see comparison.py."""
