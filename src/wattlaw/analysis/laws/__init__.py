"""Scaling laws: how a quantity changes with the number of GPUs N, with range and uncertainty.

Every law is fitted to logarithms: a measured time is the law times log-normal noise.
"""
