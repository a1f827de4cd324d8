"""Exceptions with the names and fields of PopTorch's."""

from __future__ import annotations


class Error(Exception):
    message = ""
    type = ""
    location = ""


def _error(kind: str, message: str) -> Error:
    error = Error(f"'{kind}': {message}")
    error.type, error.message = kind, message
    return error


def misuse(message: str) -> Error:
    return _error("poptorch_py_error", message)


def refusal(message: str) -> Error:
    return _error("poptorch_cpp_error", message)
