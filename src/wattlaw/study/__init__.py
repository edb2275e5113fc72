"""What to run: the study file, its sweeps, the plan of runs and their identity. Pure."""
