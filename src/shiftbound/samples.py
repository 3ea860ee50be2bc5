"""A reader's own two samples, from files: points from ``.npy`` or ``.csv``, Dyck words from text.

Nothing here executes what a file holds: ``.npy`` is read without pickled objects. Every refusal names the file, what
was found and what is allowed.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from shiftbound import InputError, require, words

METRICS = ("euclidean", "cityblock", "dyck", "dyck-path")
BRACKETS = "()[]{}<>"


def measure(a: Path, b: Path, metric: str, weights_of: tuple[Path, Path] | None = None, seed: int = 0) -> dict:
    """What `transport.compare` says of the samples in two files under ``metric``, one of ``METRICS``."""
    from shiftbound import transport

    require(metric in METRICS, "metric", metric, f"one of {', '.join(METRICS)}")
    x, y = load(a, metric), load(b, metric)
    if metric == "dyck" and x.shape != (len(x), y.shape[1]):
        raise InputError(
            f"{a.name} holds words of length {x.shape[1] - 1} and {b.name} of length {y.shape[1] - 1}; the metric dyck "
            "needs one length, dyck-path compares different ones"
        )
    loads = (
        (None, None) if weights_of is None else [weights(w, len(p)) for w, p in zip(weights_of, (x, y), strict=True)]
    )

    def between(p: ndarray, q: ndarray) -> ndarray:
        return distances(p, q, metric)

    known = {"euclidean": transport.euclidean, "cityblock": transport.cityblock}
    found = transport.compare(
        x, y, known.get(metric, between), a=loads[0], b=loads[1], seed=seed, names=(a.name, b.name)
    )
    return found | {"metric": metric}


def points(path: Path) -> Float[ndarray, "n d"]:
    """The rows of ``path`` as points; one column is allowed, a first line of column names too.

    Raises `InputError` for another file type, pickled objects, text, rows of different lengths, NaN or infinity.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        array = _npy(path)
    elif suffix == ".csv":
        array = _csv(path)
    else:
        raise InputError(f"{path.name} cannot be read as points; it must be a .npy or a .csv file")
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise InputError(f"{path.name} holds an array of shape {array.shape}; it must be rows of points, at least one")
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).all(1)))
        raise InputError(f"{path.name} holds NaN or infinity in row {row + 1}; every value must be finite")
    return array


def weights(path: Path, rows: int) -> Float[ndarray, " n"]:
    """One weight a row: finite, not negative, of positive total, as many as the sample has ``rows``."""
    array = points(path)
    if array.shape != (rows, 1):
        raise InputError(
            f"{path.name} holds {array.shape[0]} rows of {array.shape[1]}; it must hold one weight a row, {rows} rows"
        )
    if (array < 0).any() or array.sum() <= 0:
        raise InputError(
            f"{path.name} holds weights from {array.min():g} to {array.max():g}; they must be 0 or more, not all 0"
        )
    return array[:, 0]


def dyck(path: Path, equal_lengths: bool) -> tuple[list[Int[ndarray, " n"]], int]:
    """The words of a text file, one a line over ``()[]{}<>``, as opens 0..3 and closes 4..7, and the number of types 4.

    Raises `InputError` for another character, a word that is not well nested, no words, or (where ``equal_lengths``)
    words of different lengths.
    """
    lines = [line.strip() for line in _text(path).splitlines()]
    found, k = [], len(BRACKETS) // 2
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        strange = sorted(set(line) - set(BRACKETS))
        if strange:
            raise InputError(f"{path.name} holds {strange[0]!r} in line {number}; a word is written over {BRACKETS}")
        index = [BRACKETS.index(symbol) for symbol in line]
        word = np.array([i // 2 + k * (i % 2) for i in index])
        if not words.is_dyck(word, k):
            raise InputError(f"{path.name} holds {line!r} in line {number}, which is not well nested")
        found.append(word)
    if not found:
        raise InputError(f"{path.name} holds no words; it must hold at least one, one a line")
    if equal_lengths and len({len(word) for word in found}) > 1:
        lengths = sorted({len(word) for word in found})
        raise InputError(
            f"{path.name} holds words of lengths {lengths[0]} to {lengths[-1]}; the metric dyck needs one length, "
            "dyck-path compares different ones"
        )
    return found, k


def load(path: Path, metric: str) -> Float[ndarray, "n d"]:
    """A sample as the vectors that ``metric`` compares: points, height paths, or typed height paths at 32 times."""
    if metric in ("euclidean", "cityblock"):
        return points(path)
    found, k = dyck(path, equal_lengths=metric == "dyck")
    if metric == "dyck":
        return words.heights(np.stack(found), k).astype(float)
    return np.concatenate([words.typed_paths(word[None], k) for word in found])


def distances(x: Float[ndarray, "n d"], y: Float[ndarray, "m e"], metric: str) -> Float[ndarray, "n m"]:
    """The ground metric between two samples: Euclidean; city block; sum |h - h'| of height paths (``dyck``); mean
    |h - h'| over the bracket types and 32 normalised times (``dyck-path``)."""
    from shiftbound import transport

    if x.shape[1] != y.shape[1]:
        raise InputError(f"the samples have {x.shape[1]} and {y.shape[1]} columns; they must have the same number")
    if metric == "euclidean":
        return transport.euclidean(x, y)
    return transport.cityblock(x, y) / (x.shape[1] if metric == "dyck-path" else 1)


def _npy(path: Path) -> ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"{path.name} does not exist") from error
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path.name} is not a .npy file of numbers ({error})") from error
    if not isinstance(array, ndarray) or array.dtype.kind not in "fiu":
        raise InputError(f"{path.name} holds {getattr(array, 'dtype', 'an archive')}; it must hold real numbers")
    return array.astype(float)


def _csv(path: Path) -> ndarray:
    rows = [row for row in csv.reader(_text(path).splitlines()) if row]
    if rows and not any(map(_number, rows[0])):
        rows = rows[1:]
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{path.name} holds {len(row)} columns in row {number} but {len(rows[0])} in row 1; rows must agree"
            )
        for cell in row:
            if not _number(cell):
                raise InputError(f"{path.name} holds {cell!r} in row {number}; every value must be a number")
    return np.array([[float(cell) for cell in row] for row in rows])


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"{path.name} does not exist") from error
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path.name} is not a text file in UTF-8") from error
