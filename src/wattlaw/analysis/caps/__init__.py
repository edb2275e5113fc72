"""Power caps and clock limits: what they do to time, energy and the scaling law, and the best."""
