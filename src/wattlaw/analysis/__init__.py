"""Tables in, findings out. Pure: no files, no devices, no torch."""
