"""Devices, their meters and limits; the sampler; the energy of a window."""
