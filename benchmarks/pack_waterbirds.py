"""Waterbirds as one small file, for machines that the release of half a gigabyte is too large for.

    python benchmarks/pack_waterbirds.py RELEASE waterbirds.tar [--side 160] [--quality 50]

Images are cut to squares as holdfast reads them, scaled to the side and stored as WebP. Training and validation are
kept whole; of the test split every pair of bird and background keeps as many images as the smallest has (642), the
first in the order of the table, so that groups are equally large. Unpacked it is read like the release.
"""

from __future__ import annotations

import argparse
import csv
import io
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from holdfast.data.images import read_image

TABLE, TEST = "metadata.csv", "2"


def kept(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    sizes = Counter((row["y"], row["place"]) for row in rows if row["split"] == TEST)
    taken: Counter[tuple[str, str]] = Counter()
    found = []
    for row in rows:
        cell = row["y"], row["place"]
        taken[cell] += row["split"] == TEST
        if row["split"] != TEST or taken[cell] <= min(sizes.values()):
            found.append(row | {"img_filename": str(PurePosixPath(row["img_filename"]).with_suffix(".webp"))})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--side", type=int, default=160)
    parser.add_argument("--quality", type=int, default=50)
    args = parser.parse_args()
    with (args.release / TABLE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    own = kept(rows)
    given = {str(PurePosixPath(row["img_filename"]).with_suffix(".webp")): row["img_filename"] for row in rows}
    with tarfile.open(args.out, "w") as tar:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(f"waterbirds/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        table = io.StringIO()
        writer = csv.DictWriter(table, list(own[0]))
        writer.writeheader()
        writer.writerows(own)
        add(TABLE, table.getvalue().encode())
        for row in own:
            name = row["img_filename"]
            pixels = read_image(args.release / given[name], size=(args.side, args.side), channels=3)
            buffer = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(buffer, "WEBP", quality=args.quality)
            add(name, buffer.getvalue())
    print(f"{len(own)} images, {args.out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
