"""Workloads: models with their data and training recipes."""
