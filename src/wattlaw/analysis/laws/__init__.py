"""Scaling laws: how a quantity changes with the number of GPUs N, over which N, and how sure.

Every law is fitted to logarithms: a measured time is the law times log-normal noise.
"""
