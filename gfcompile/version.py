"""The package's version, for whoever may not import the package's front."""

__version__ = "0.1.0"
