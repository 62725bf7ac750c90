"""Elastic jobs: the coordinator, its agents on the hosts, and who is a rank at what time."""
