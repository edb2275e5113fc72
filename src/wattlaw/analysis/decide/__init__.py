"""Choose the next measurement for what it adds to a decision per GPU-hour, and say when to stop."""
