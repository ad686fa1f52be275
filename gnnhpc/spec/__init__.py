"""What one cell is: experiments typed and checked, cells in manifests.

Free of torch; imports core, and the settings of models and data.
"""
