"""What one cell is: experiment, manifest, stage cut and balance, flags of `gnnhpc run`.

Free of torch; imports records, data, models and core.
"""
