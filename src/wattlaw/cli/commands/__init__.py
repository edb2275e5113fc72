"""The commands: one module each, with a function of its name, or ``app`` of several commands."""
