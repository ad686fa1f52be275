"""Whether the gradient of a step of full size is the slope of its loss."""
