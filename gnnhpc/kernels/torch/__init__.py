"""What the kernels compute, in plain torch: any device, any precision, bounded memory."""
