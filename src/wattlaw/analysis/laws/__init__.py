"""Scaling laws: how a quantity changes with the number of GPUs N, with range and uncertainty.

Laws of N are fitted to logarithms: a measured time is the law times log-normal noise. The energy of
a GPU-hour is a weighted mean (``energy_laws``).
"""
