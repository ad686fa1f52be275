"""Rows of text files with separators: any usual encoding and separator, each row with its line."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator
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
    first, _, rest = text.partition("\n")
    named = re.fullmatch(r"sep=(.)\s*", first)
    delimiter = ","
    if named:
        delimiter, text = named[1], rest
    else:
        with contextlib.suppress(csv.Error):
            delimiter = csv.Sniffer().sniff(first, delimiters=",;\t|").delimiter
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        before = reader.line_num
        line = before + (2 if named else 1)
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            row = None
        if row is None or reader.line_num > before + 1:
            found = "a quote that does not close on its line"
            raise InputError(f"{path}:{line}", None, found, "quotes in pairs")
        if any(field.strip() for field in row):
            yield line, row
