"""Measure the kernels, the input and the profile of a workload."""
