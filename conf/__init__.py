"""The groups of every command; in the wheel ``extrapolate.conf``, for ``pkg://extrapolate.conf``."""
