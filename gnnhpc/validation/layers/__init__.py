"""One layer at a time at its real shape, compared with its reference form; see kernel_parity."""
