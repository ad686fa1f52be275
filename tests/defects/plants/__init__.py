"""The defects, a class of them a file; importing a file registers its defects."""
