"""Searches over the fields of strategies: samplers of our own beside Optuna's."""
