"""Sentences made from findings."""
