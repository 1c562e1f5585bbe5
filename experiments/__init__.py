"""Scripts, each run as ``python -m experiments.<name>``; the only code that imports Hydra."""
