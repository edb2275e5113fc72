"""One process of a run: the node agent, the worker, its epochs and steps."""
