"""Where runs happen, and the campaign that walks a plan."""
