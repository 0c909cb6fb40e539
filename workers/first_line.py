"""What somebody else's error says, in one line."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """The first line of its message that is not empty; its type's name where there is none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
