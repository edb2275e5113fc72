"""A GPU cluster on paper: time and power of a run from first principles."""
