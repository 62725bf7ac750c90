"""Starts the ranks of a job, and recognises who started this one."""
