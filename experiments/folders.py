"""Where a command's results are."""

from hydra.utils import to_absolute_path

from extrapolate.storage import Location, location


def results_folder(where: str) -> Location:
    """A URL that fsspec knows, or a path; a relative one means the folder the command was given in.

    Raises:
        ResultError: for a URL of a kind that fsspec does not know, or whose package is not installed.
    """
    return location(where if "://" in where else to_absolute_path(where))
