"""Independent readers of data sets, and the arrays of a data set by name."""
