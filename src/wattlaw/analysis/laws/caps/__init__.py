"""Power caps and clock limits: their effect on time, energy and the scaling law."""
