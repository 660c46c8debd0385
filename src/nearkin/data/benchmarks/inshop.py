"""In-shop Clothes Retrieval (DeepFashion; Liu et al., 2016): queries are searched in a separate gallery."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, first_existing, text_rows
from nearkin.data.benchmarks.registry import Benchmark, register
from nearkin.errors import UserError


@register(
    Benchmark(
        name="inshop",
        description="In-shop Clothes Retrieval: 7,982 items, split by class, separate query and gallery",
        source="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        counts={"train": 25_882, "test": 26_830, "query": 14_218, "gallery": 12_612},
        classes=7_982,
        layout="inshop/ with img/ (or Img/img/) and Eval/list_eval_partition.txt",
        folders=("inshop", "In-shop Clothes Retrieval Benchmark", "In-shop", "in-shop"),
        marks=("Eval/list_eval_partition.txt", "list_eval_partition.txt"),
    )
)
def inshop(folder: Path) -> Listing:
    partition = first_existing(folder, "Eval/list_eval_partition.txt", "list_eval_partition.txt")
    below = "Img" if (folder / "Img" / "img").is_dir() else ""
    entries = []
    for place, (path, item, status) in text_rows(partition, "image_name item_id evaluation_status", header_line=2):
        if status not in ("train", "query", "gallery"):
            raise UserError(f"{place}: expected train, query or gallery, found '{status}'")
        split, role = ("train", "") if status == "train" else ("test", status)
        entries.append(Entry(path, item, split, place, below, role))
    return Listing(
        entries,
        classes={entry.class_id: entry.class_id for entry in entries},
        attributes={"category": [_category(entry.path) for entry in entries]},
    )


def _category(path: str) -> str:
    return "/".join(path.split("/")[1:-2])  # "img/WOMEN/Dresses/id_00000002/02_1_front.jpg"
