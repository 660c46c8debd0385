"""Stanford Dogs (Khosla et al., 2011): 120 breeds, split by image, 100 training images per breed."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, first_existing, mat_rows, whole_number
from nearkin.data.benchmarks.registry import Benchmark, register


@register(
    Benchmark(
        name="dogs120",
        description="Stanford Dogs: 120 dog breeds, split by image",
        source="http://vision.stanford.edu/aditya86/ImageNetDogs/",
        counts={"train": 12_000, "test": 8_580},
        classes=120,
        layout="dogs120/ with Images/, train_list.mat and test_list.mat (or both in lists/)",
        folders=("dogs120", "stanford_dogs", "Stanford_Dogs", "StanfordDogs"),
        marks=("train_list.mat", "lists/train_list.mat"),
    )
)
def dogs120(folder: Path) -> Listing:
    entries = [
        Entry(path, str(whole_number(breed, place)), split, place, below="Images")
        for split in ("train", "test")
        for place, (path, breed) in mat_rows(
            first_existing(folder, f"{split}_list.mat", f"lists/{split}_list.mat"), "file_list", "labels"
        )
    ]
    return Listing(entries, classes={entry.class_id: _breed(entry.path) for entry in entries})


def _breed(path: str) -> str:
    folder = path.partition("/")[0]  # "n02085620-Chihuahua/n02085620_5927.jpg"
    return folder.partition("-")[2].replace("_", " ")
