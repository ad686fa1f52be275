"""The version of the three packages, equal to that of pyproject.toml and CITATION.cff."""

VERSION = "0.1.0"
