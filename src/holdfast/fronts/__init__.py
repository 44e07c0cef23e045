"""The fronts of an audit: each takes a subject and returns findings. One file or package a front."""

from holdfast.fronts.auditing import FRONTS, Outcome, audit, check_names, measure
from holdfast.fronts.subject import Subject

__all__ = ["FRONTS", "Outcome", "Subject", "audit", "check_names", "measure"]
