"""The seven networks of the two studies."""
