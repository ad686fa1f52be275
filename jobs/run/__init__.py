"""A run: its folder and its state, and what one does with it: submit, rerun, cancel, clean."""
