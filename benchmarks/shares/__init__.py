"""Where the time of a call, and of a training step, goes: by samples of the ranks."""
