"""Optimizer steps of unmodified training scripts: recorded in the script, read and summarised here.

docs/measuring.md describes the files, the environment variables and the limits.
"""
