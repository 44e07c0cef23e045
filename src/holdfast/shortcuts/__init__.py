"""Find the spurious correlation in training data: which samples conflict with the shortcut, without group labels."""

from holdfast.shortcuts.conflicting_samples import Cluster, Shortcuts
from holdfast.shortcuts.search import find_shortcuts

__all__ = ["Cluster", "Shortcuts", "find_shortcuts"]
