"""The fixture behind ``hookproc.concurrent``, one for all modules that use it."""

from hookproc import started_cases

__all__ = ["started_cases"]
