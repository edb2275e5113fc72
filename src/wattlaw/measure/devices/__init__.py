"""One module or package per kind of hardware: how to read and limit it."""
