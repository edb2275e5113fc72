"""The live view of stores: a local web server that only reads, and ``wattlaw top``."""
