"""The ledger of finished cells, and the table they make."""

from extrapolate.results.ledger import Ledger, cell_key, read_results, recorded
from extrapolate.results.schema import COLUMNS, SCHEMA

__all__ = ["COLUMNS", "SCHEMA", "Ledger", "cell_key", "read_results", "recorded"]
