"""Oxford-IIIT Pet (Parkhi et al., 2012): 25 breeds of dogs and 12 of cats, split by image."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, text_rows, whole_number
from nearkin.data.benchmarks.registry import Benchmark, register
from nearkin.errors import UserError

SPECIES = {"1": "cat", "2": "dog"}


@register(
    Benchmark(
        name="pets37",
        description="Oxford-IIIT Pet: 37 breeds of cats and dogs, split by image",
        source="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        counts={"train": 3_680, "test": 3_669},
        classes=37,
        layout="pets37/ with images/, annotations/trainval.txt and annotations/test.txt",
        folders=("pets37", "oxford-iiit-pet", "oxford_iiit_pet", "Oxford-IIIT-Pet"),
        marks=("annotations/trainval.txt",),
    )
)
def pets37(folder: Path) -> Listing:
    entries, species, classes = [], [], {}
    for split, name in (("train", "trainval.txt"), ("test", "test.txt")):
        rows = text_rows(folder / "annotations" / name, "image class species breed")
        for place, (image, number, animal, _) in rows:
            breed = str(whole_number(number, place))
            if animal not in SPECIES:
                raise UserError(f"{place}: expected species 1 (cat) or 2 (dog), found '{animal}'")
            entries.append(Entry(f"{image}.jpg", breed, split, place, below="images"))
            species.append(SPECIES[animal])
            classes[breed] = image.rpartition("_")[0].replace("_", " ")  # "american_bulldog_100"
    return Listing(entries, classes, attributes={"species": species})
