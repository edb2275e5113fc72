"""What can go wrong, in words for the user: one line that says what and where, and an exit code."""


class WattlawError(Exception):
    """Base of every error that wattlaw raises on purpose; its text is one line for the user."""

    exit_code = 2


class BadInput(WattlawError):
    """A study file, table, option or store that cannot be used as it is (exit code 2)."""


class NotAvailable(WattlawError):
    """Something this machine or user lacks: a package, a device, a permission (exit code 3)."""

    exit_code = 3


class NotPermitted(NotAvailable):
    """Something this user may not do; the text says who may."""


class Refused(WattlawError):
    """An analysis that the data cannot support; the text says what is missing."""


def one_line(error: BaseException) -> str:
    """Return ``Type: first words`` of an error on a single line, for reasons and logs."""
    words = " ".join(str(error).split())
    if isinstance(error, WattlawError):
        return words
    name = type(error).__name__
    return f"{name}: {words}" if words else name
