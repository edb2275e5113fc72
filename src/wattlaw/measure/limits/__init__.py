"""Power and clock limits of devices, which are restored after use."""
