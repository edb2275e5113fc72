"""An outside package, as a user might install it: two odd meters, and a scheduler."""
