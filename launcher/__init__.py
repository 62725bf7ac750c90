"""Starts the ranks of a job, and recognises the launcher of this one."""
