"""NVIDIA GPUs through nvidia-ml-py: which there are, how they are read and limited."""
