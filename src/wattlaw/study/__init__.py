"""The study file, its sweeps, the planned runs and their identity. Pure."""
