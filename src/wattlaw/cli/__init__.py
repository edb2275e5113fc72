"""Commands: parse arguments, call one function, print. Nothing else."""
