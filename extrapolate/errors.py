"""Errors that a user can act on: each message names the field, the value, the rule and the way out."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, for messages of one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class ExtrapolateError(Exception):
    """Base class; catch it to catch everything this package raises on purpose."""


class StrategyError(ExtrapolateError, ValueError):
    """A strategy's field, or a strategy on a model where it is not defined."""


class ModelError(ExtrapolateError, ValueError):
    """A model whose rotary embedding is absent, not understood, or did not take the patch."""


class LoadError(ExtrapolateError, OSError):
    """A checkpoint or tokenizer that cannot be loaded from where it was asked."""


class DataError(ExtrapolateError, ValueError):
    """A corpus that cannot be read or is too short for what was asked."""


class EvaluationError(ExtrapolateError, ValueError):
    """An evaluation's field, or an input that it cannot score."""


class ResultError(ExtrapolateError, ValueError):
    """A results folder or file that cannot be read or written."""
