"""CUB-200-2011 (Wah et al., 2011): train on the first 100 bird species, test on the others."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, text_rows, whole_number
from nearkin.data.benchmarks.registry import Benchmark, register
from nearkin.errors import UserError

LAST_TRAIN_CLASS = 100


@register(
    Benchmark(
        name="cub200",
        description="CUB-200-2011: 200 bird species, split by class",
        source="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        counts={"train": 5_864, "test": 5_924},
        classes=200,
        layout="CUB_200_2011/ with images/, images.txt, image_class_labels.txt and classes.txt",
        folders=("CUB_200_2011", "cub200"),
        marks=("image_class_labels.txt",),
    )
)
def cub200(folder: Path) -> Listing:
    labels = text_rows(folder / "image_class_labels.txt", "image_id class_id")
    class_of = {image: whole_number(number, place) for place, (image, number) in labels}
    entries = []
    for place, (image, path) in text_rows(folder / "images.txt", "image_id image_name"):
        if image not in class_of:
            raise UserError(f"{place}: image {image} has no class in image_class_labels.txt")
        split = "train" if class_of[image] <= LAST_TRAIN_CLASS else "test"
        entries.append(Entry(path, str(class_of[image]), split, place, below="images"))
    classes = {
        number: name.partition(".")[2].replace("_", " ")  # "001.Black_footed_Albatross"
        for _, (number, name) in text_rows(folder / "classes.txt", "class_id class_name")
    }
    return Listing(entries, classes)
