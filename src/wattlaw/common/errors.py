"""Exceptions: their text is one line for the user, and each has an exit code."""


class WattlawError(Exception):
    """Base of all errors that wattlaw raises; the text is one line for the user."""

    exit_code = 2


class BadInput(WattlawError):
    """A study file, table, option or store that is not valid (exit code 2)."""


class NotAvailable(WattlawError):
    """A package, device or permission that is missing (exit code 3)."""

    exit_code = 3


class NotPermitted(NotAvailable):
    """An action that this user may not perform; the text says who is permitted."""


class NoSuchRun(WattlawError):
    """A run that a store does not have."""


class DamagedFileWarning(UserWarning):
    """A missing or damaged file of a store; the text names it, what lacks it, and what to do."""


class Refused(WattlawError):
    """An analysis that the data cannot support; the text says what is missing."""


class NothingToRecommend(Refused):
    """Runs from which no setting can be recommended or predicted (exit code 1)."""

    exit_code = 1


def one_line(error: BaseException) -> str:
    """Return ``Type: text`` of an error on a single line, for reasons and logs."""
    text = " ".join(str(error).split())
    if isinstance(error, WattlawError):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name
