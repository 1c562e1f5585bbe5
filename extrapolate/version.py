"""The version, part of every cell's key: a release that changes a number changes the key."""

__version__ = "0.2.0"
