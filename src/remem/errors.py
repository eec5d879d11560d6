"""Refusals: sentences for the person who gave the input, shown by the command line without a traceback."""

from __future__ import annotations


class RememError(Exception):
    """Something remem stops for on purpose; the message says what happened and what to do."""


class BadInput(RememError, ValueError):
    """What was given can't be used: says what it was, what was expected, and what to do."""
