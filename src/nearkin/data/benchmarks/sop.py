"""Stanford Online Products (Song et al., 2016): train on 11,318 products, test on 11,316 others."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, text_rows, whole_number
from nearkin.data.benchmarks.registry import Benchmark, register


@register(
    Benchmark(
        name="sop",
        description="Stanford Online Products: 22,634 products of 12 kinds, split by class",
        source="https://cvgl.stanford.edu/projects/lifted_struct/",
        counts={"train": 59_551, "test": 60_502},
        classes=22_634,
        layout="Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt, bicycle_final/ and so on",
        folders=("Stanford_Online_Products", "sop"),
        marks=("Ebay_train.txt", "Ebay_test.txt"),
    )
)
def sop(folder: Path) -> Listing:
    entries, kinds, classes = [], [], {}
    for split in ("train", "test"):
        rows = text_rows(folder / f"Ebay_{split}.txt", "image_id class_id super_class_id path", header_line=1)
        for place, (_, number, _, path) in rows:
            product = str(whole_number(number, place))
            kind = path.partition("/")[0].removesuffix("_final").replace("_", " ")
            entries.append(Entry(path, product, split, place))
            kinds.append(kind)
            classes[product] = f"{kind} {product}"
    return Listing(entries, classes, attributes={"super_class": kinds})
