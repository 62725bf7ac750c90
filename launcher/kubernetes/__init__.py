"""Kubernetes: a manifest for a job, and the pods of an Indexed Job that run it."""
