"""Texts of exceptions, for messages."""

from __future__ import annotations


def cause_of(error: OSError) -> str:
    """Why a file cannot be used."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "it is a folder, and a file is expected"
    return error.strerror or str(error)


def text_of(error: OSError) -> str:
    """The file and the cause; the text of the error itself if it names no file."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {cause_of(error)}"


def reason_of(error: BaseException) -> str:
    """Type and text of an exception; the type alone if it has no text, such as of Ctrl-C."""
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name
