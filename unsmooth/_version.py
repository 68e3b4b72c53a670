"""The version of unsmooth, its one place."""

__version__ = "0.1.0"
