"""The commands: one module each. A module defines ``app``, and ``cli.app`` imports it to run it."""
