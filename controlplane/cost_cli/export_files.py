"""The files that an export writes: CSV, Parquet and JSON, row by row, and never half of one.

A file is written beside its target and renamed when it is whole, so that whoever reads the target sees the old one or
the new one. What is not known is an empty field in CSV, null elsewhere.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TextIO

from controlplane.finops.export_cells import Field, Kind, Row

ROWS_OF_A_GROUP = 20_000
"""Rows of a Parquet row group: what is held in memory."""

MONEY_DIGITS = 38
SPREADSHEET_STARTS = ("=", "+", "-", "@", "\t", "\r")


class RowFile(Protocol):
    """Takes rows as they come; whole after `close`."""

    def write(self, rows: Sequence[Row]) -> None: ...
    def close(self) -> None: ...


@lru_cache(4096)
def moment_text(moment: datetime) -> str:
    """UTC as 2026-11-29T15:00:00Z."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _text(value: Any) -> str | None:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return moment_text(value) if isinstance(value, datetime) else value


def _texts(values: Iterable[Any], kind: Kind, *, is_guarded: bool) -> Iterable[str | None]:
    """A column of a CSV file; one kind at a time, because a year has a hundred million fields."""
    match kind:
        case "text" if is_guarded:
            return [f"'{v}" if v is not None and v.startswith(SPREADSHEET_STARTS) else v for v in values]
        case "text":
            return values
        case "moment":
            return [None if v is None else moment_text(v) for v in values]
        case _:
            return [None if v is None else format(v, "f") for v in values]


class CsvFile:
    """is_guarded: text that a spreadsheet would take for a formula (= + - @ first) gets an apostrophe before it."""

    def __init__(self, stream: TextIO, fields: Sequence[Field], *, is_guarded: bool) -> None:
        self._writer = csv.writer(stream, lineterminator="\n")
        # Before Python 3.13 a carriage return is not reason enough to quote, and readers end the row at it.
        self._quoting = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
        self._fields, self._is_guarded = fields, is_guarded
        self._writer.writerow([field.name for field in fields])

    def write(self, rows: Sequence[Row]) -> None:
        columns = zip(self._fields, zip(*rows, strict=True), strict=True)
        texts = [list(_texts(column, field.kind, is_guarded=self._is_guarded)) for field, column in columns]
        if any("\r" in "".join(filter(None, column)) for column in texts):
            for row in zip(*texts, strict=True):
                writer = self._quoting if any("\r" in text for text in row if text) else self._writer
                writer.writerow(row)
        else:
            self._writer.writerows(zip(*texts, strict=True))

    def close(self) -> None:
        """Nothing is left to write."""


class JsonFile:
    """One object: what `head` has, and "rows". Money, seconds and joules are decimal strings, counts are numbers."""

    def __init__(self, stream: TextIO, fields: Sequence[Field], head: Mapping[str, Any]) -> None:
        self._stream, self._fields = stream, fields
        self._before = "\n"
        stream.write(json.dumps(head, ensure_ascii=False)[:-1] + ', "rows": [')

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            values = {
                field.name: int(value) if field.kind == "integer" and value is not None else _text(value)  # type: ignore[arg-type]
                for field, value in zip(self._fields, row, strict=True)
            }
            self._stream.write(self._before + json.dumps(values, ensure_ascii=False))
            self._before = ",\n"

    def close(self) -> None:
        self._stream.write("\n]}\n")


class ParquetFile:
    """Money and quantities as decimal128, times as timestamps in UTC, counts as int64; `about` goes into the schema."""

    def __init__(self, path: Path, fields: Sequence[Field], about: Mapping[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        def type_of(field: Field) -> Any:
            match field.kind:
                case "decimal":
                    return pa.decimal128(MONEY_DIGITS, field.scale)
                case "moment":
                    return pa.timestamp("ms", tz="UTC")
                case kind:
                    return pa.int64() if kind == "integer" else pa.string()

        self._schema = pa.schema([pa.field(field.name, type_of(field)) for field in fields], metadata=dict(about))
        self._integers = frozenset(i for i, field in enumerate(fields) if field.kind == "integer")
        self._writer = pq.ParquetWriter(path, self._schema)
        self._waiting: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:
        self._waiting += rows
        if len(self._waiting) >= ROWS_OF_A_GROUP:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        arrays = []
        for i, (column, field) in enumerate(zip(zip(*self._waiting, strict=True), self._schema, strict=True)):
            values = [None if v is None else int(v) for v in column] if i in self._integers else column
            arrays.append(pa.array(values, type=field.type))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._waiting = []


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside `target` to write to, renamed to it at the end, removed after an error.

    A target that is no ordinary file (a pipe, a device) is written to as it is. Raises OSError.
    """
    target = target.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        if target.exists():
            shutil.copymode(target, part)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
