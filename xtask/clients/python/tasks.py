"""What RQ's workers execute: they import it by its name."""

from common import connect


def count(number):
    """Executed once, it leaves a one."""
    return connect().incr(f"jobs:done:{number}")
