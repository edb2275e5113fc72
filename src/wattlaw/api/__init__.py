"""The Python API: what ``import wattlaw`` offers. Each name is imported when it is first used."""
