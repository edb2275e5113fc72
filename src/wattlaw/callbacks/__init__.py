"""Callbacks that record the windows of other libraries' training loops."""
