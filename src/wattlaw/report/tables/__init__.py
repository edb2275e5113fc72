"""Tables of a report, from findings; text only."""
