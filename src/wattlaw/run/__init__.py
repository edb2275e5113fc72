"""Launchers, and the campaign that executes a plan."""
