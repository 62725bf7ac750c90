"""A recorded job's calls once more, without its model: by real ranks, or in the simulator."""
