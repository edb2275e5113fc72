"""The sampler process, the streams of windows, and the energy of windows from samples."""
