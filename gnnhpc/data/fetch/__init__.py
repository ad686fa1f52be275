"""Downloads, and folders that appear whole or not at all. Imports data.files."""
