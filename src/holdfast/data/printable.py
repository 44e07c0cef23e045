"""The old place of :mod:`holdfast.printable`, until every import has moved."""

from holdfast.printable import printable as printable
