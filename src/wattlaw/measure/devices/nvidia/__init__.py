"""NVIDIA GPUs through nvidia-ml-py: their discovery, meter and limiters."""
