"""One command a file; the only place that imports Hydra or argparse."""
