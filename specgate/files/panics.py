"""Errors of libraries written in Rust that Python's `except Exception` lets through.

A Rust library that panics raises `pyo3_runtime.PanicException`, which derives from BaseException and cannot be
imported. Bad input must not end the process with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specgate.errors import SpecgateError


@contextmanager
def refusing(error_of: Callable[[str], SpecgateError]) -> Iterator[None]:
    """Turn every exception of a foreign parser, its panics included, into `error_of(its message)`.

    Errors of specgate's own, and what ends a process on purpose, pass.
    """
    try:
        yield
    except SpecgateError:
        raise
    except Exception as error:
        raise error_of(first_line(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise error_of(first_line(error)) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, made printable and short; the kind of the error where it has none."""
    lines = str(error).splitlines()
    text = "".join(c if c.isprintable() else "�" for c in lines[0]) if lines else ""
    return (text if len(text) <= 200 else text[:199] + "…") or type(error).__name__
