"""The sampler process, the marks of windows, and the energy of a window from samples."""
