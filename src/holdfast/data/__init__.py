"""Sets of labelled images, wherever they come from."""

from holdfast.data.load import load
from holdfast.data.splits import ArraySplit, Dataset, FileSplit, Split, aligned_groups

__all__ = ["ArraySplit", "Dataset", "FileSplit", "Split", "aligned_groups", "load"]
