"""Training methods: which neighbour of a sample to train on. One file a method."""

from holdfast.methods.base import Context, Method, Stage

__all__ = ["Context", "Method", "Stage"]
