"""Rows of text files with separators: any usual encoding and separator, each row with its line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from charset_normalizer import from_bytes

from gnnhpc.core.errors import InputError


def read_text(path: Path) -> str:
    """UTF-8, UTF-16 or what the bytes look like."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(path, None, error.strerror, "a readable CSV file") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        best = from_bytes(content).best()
    text = "" if best is None else str(best).removeprefix("\ufeff")
    if not text or re.search(r"[\x00-\x08]", text):
        raise InputError(path, None, "bytes that are no text", "a CSV file") from None
    return text


def csv_rows(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and fields of each row that is not empty.

    Raises InputError for a quote that does not close on its line: it would swallow the rows after.
    """
    stream = io.StringIO(text, newline="")
    first = stream.readline()
    said = re.fullmatch(r"sep=(.)\s*", first)
    skipped = 1 if said else 0
    if not said:
        stream.seek(0)
    delimiter = said[1] if said else _sniff(first)
    reader = csv.reader(stream, delimiter=delimiter, strict=True)
    before = skipped
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            raise _open_quote(path, before + 1) from None
        line = reader.line_num + skipped
        if line > before + 1:
            raise _open_quote(path, before + 1)
        before = line
        if any(field.strip() for field in row):
            yield line, row


def _open_quote(path: Path, line: int) -> InputError:
    found = "a quote that does not close on its line"
    return InputError(f"{path}:{line}", None, found, "quotes in pairs")


def _sniff(header: str) -> str:
    try:
        return csv.Sniffer().sniff(header, delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


def check_widths(body: Sequence[tuple[int, list[str]]], header: Sequence[str], path: Path) -> None:
    for line, row in body:
        if len(row) != len(header):
            raise InputError(f"{path}:{line}", None, f"{len(row)} fields", f"{len(header)}")
