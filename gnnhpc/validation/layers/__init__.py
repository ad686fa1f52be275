"""One layer at a time at its real shape, compared with plain torch; see kernel_parity."""
