"""Metrics of runs: groups, series, comparable runs."""
