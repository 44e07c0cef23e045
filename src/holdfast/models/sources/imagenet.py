"""Names of the 1,000 ImageNet classes, by which a published model's outputs can be told apart."""

from __future__ import annotations

from functools import cache

CLASSES = 1000


@cache
def names() -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """(the WordNet number of each class, its words). Folders on disk carry one or the other.

    >>> names()[0][0], names()[1][0]
    ('n01440764', ('tench', 'Tinca tinca'))
    """
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    words = (tuple(w.strip() for w in info.index_to_description(i).split(",")) for i in range(CLASSES))
    return tuple(info.index_to_label_name(i) for i in range(CLASSES)), tuple(words)
