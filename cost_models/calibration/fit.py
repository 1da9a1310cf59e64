"""Fits of tables to measurements: smooth, robust, with the least relative errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spsolve

from cost_models.laws.table import Table

Floats = NDArray[np.float64]

#: The weight of the squared second differences of a table along each axis, relative to that of a row.
_SMOOTHNESS = 0.03
#: Rounds of reweighting; the error above which a row has less weight (least absolute errors beyond it).
_ROUNDS, _KNEE = 6, 0.02


def fit_table(
    names: tuple[str, ...],
    knots: tuple[Floats, ...],
    coordinates: tuple[Floats, ...],
    base: Floats,
    measured: Floats,
) -> Table:
    """Fit the table v over `knots` for which base x v is closest to `measured`, in relative terms.

    Args:
        names, knots: the axes of the table.
        coordinates: for each axis the coordinate of each row, (n,).
        base, measured: ns, (n,).

    The sum of squares is reweighted towards least absolute errors (Huber's loss, iteratively), since some percent of
    kernel measurements are outliers. Where there are no rows, smoothness (`_SMOOTHNESS`) alone determines the values:
    they continue linearly.
    """
    blank = Table(names, knots, np.zeros([len(points) for points in knots]))
    design = _design(blank, coordinates)
    relative = sparse.diags(base / measured) @ design
    penalty = _curvature(blank.values.shape) * _SMOOTHNESS + sparse.identity(design.shape[1]) * 1e-9
    prior = np.full(design.shape[1], 1e-9)
    weights = np.ones(len(measured))
    values = np.ones(design.shape[1])
    for _ in range(_ROUNDS):
        weighted = sparse.diags(weights) @ relative
        values = spsolve((relative.T @ weighted + penalty).tocsc(), relative.T @ weights + prior)
        errors = np.abs(relative @ values - 1)
        weights = np.minimum(1.0, _KNEE / np.maximum(errors, 1e-12))
    return Table(names, knots, np.maximum(values, 0.0).reshape(blank.values.shape))


def _design(table: Table, coordinates: tuple[Floats, ...]) -> sparse.csr_array:
    """Return the matrix that turns the flattened values into the table's value at each row."""
    count, shape = len(coordinates[0]), table.values.shape
    axes = table.weights(*coordinates)
    rows, columns, entries = [], [], []
    for corner in range(2 ** len(axes)):
        index, weight = [], np.ones(count)
        for axis, (low, share) in enumerate(axes):
            upper = corner >> axis & 1
            index.append(np.minimum(low + upper, shape[axis] - 1))
            weight = weight * (share if upper else 1 - share)
        rows.append(np.arange(count))
        columns.append(np.ravel_multi_index(tuple(index), shape))
        entries.append(weight)
    data = (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns)))
    return sparse.coo_array(data, shape=(count, int(np.prod(shape)))).tocsr()


def _curvature(shape: tuple[int, ...]) -> sparse.csr_array:
    """Return the sum over the axes of D'D, with D the second differences along the axis."""
    total = sparse.csr_array((int(np.prod(shape)), int(np.prod(shape))))
    for axis, length in enumerate(shape):
        if length < 3:
            continue
        second = sparse.diags([1.0, -2.0, 1.0], [0, 1, 2], shape=(length - 2, length))
        parts = [sparse.identity(other) for other in shape]
        parts[axis] = second.T @ second
        product = parts[0]
        for part in parts[1:]:
            product = sparse.kron(product, part)
        total = total + product
    return sparse.csr_array(total)
