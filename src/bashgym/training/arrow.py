"""Encoded examples as an Arrow table: four bytes a token, no Python objects, no schema guessing."""

from __future__ import annotations

from array import array

import pyarrow as pa
from datasets import Dataset

from bashgym.data.types import Encoded


class EncodedTable:
    """Collects input ids and labels in flat int32 buffers."""

    def __init__(self) -> None:
        self._ids, self._labels, self._offsets = array("i"), array("i"), array("q", [0])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add(self, encoded: Encoded) -> None:
        """Appends one example."""
        self._ids.extend(encoded.input_ids)
        self._labels.extend(encoded.labels)
        self._offsets.append(len(self._ids))

    def dataset(self) -> Dataset:
        """A dataset with the columns input_ids and labels."""
        offsets = pa.array(self._offsets, type=pa.int64())
        columns = {
            name: pa.LargeListArray.from_arrays(offsets, pa.array(values, type=pa.int32()))
            for name, values in (("input_ids", self._ids), ("labels", self._labels))
        }
        return Dataset(pa.table(columns))
