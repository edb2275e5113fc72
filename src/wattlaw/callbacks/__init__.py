"""Callbacks that mark the windows of other people's training loops."""
