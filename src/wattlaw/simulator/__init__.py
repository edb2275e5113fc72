"""Simulates time and power of training on a GPU cluster from first principles."""
