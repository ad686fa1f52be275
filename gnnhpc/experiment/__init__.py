"""What one cell is: the experiment, the manifest, the stage cut, flags of `gnnhpc run`.

Free of torch; imports records, data, models and core.
"""
