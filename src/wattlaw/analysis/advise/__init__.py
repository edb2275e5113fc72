"""What to run: GPU count, cap, clock and batch, from measured settings and, if needed, laws."""
