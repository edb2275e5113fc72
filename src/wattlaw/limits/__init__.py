"""Power and clock limits of devices: applied for a while, and always given back."""
