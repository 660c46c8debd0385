"""PKU VehicleID (Liu et al., 2016), with its small, medium and large test sets.

Papers count 110,178 training images of 13,134 vehicles and 7,332, 12,995 and 20,038 test images. The lists of
VehicleID_V1.0 contain 113,346 images of 13,164 vehicles and 6,493, 13,377 and 19,777 test images. Both are accepted.
"""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, text_rows, whole_number
from nearkin.data.benchmarks.registry import Benchmark, register


def _benchmark(size: str, vehicles: int, published: int, listed: int, aliases: tuple[str, ...] = ()) -> Benchmark:
    return Benchmark(
        name=f"vehicleid:{size}",
        description=f"PKU VehicleID, {size} test set: {vehicles:,} test vehicles, split by class",
        source="https://www.pkuml.org/resources/pku-vehicleid.html",
        counts={"train": 110_178, "test": published},
        distributed={"train": 113_346, "test": listed},
        classes=13_134 + vehicles,
        layout=f"VehicleID_V1.0/ with image/, train_test_split/train_list.txt and test_list_{vehicles}.txt",
        folders=("VehicleID_V1.0", "VehicleID", "vehicleid"),
        marks=("train_test_split/train_list.txt",),
        aliases=aliases,
        protocol="random-gallery",
    )


@register(_benchmark("small", 800, 7_332, 6_493, aliases=("vehicleid",)))
def small(folder: Path) -> Listing:
    return _listing(folder, "test_list_800.txt")


@register(_benchmark("medium", 1_600, 12_995, 13_377))
def medium(folder: Path) -> Listing:
    return _listing(folder, "test_list_1600.txt")


@register(_benchmark("large", 2_400, 20_038, 19_777))
def large(folder: Path) -> Listing:
    return _listing(folder, "test_list_2400.txt")


def _listing(folder: Path, test_list: str) -> Listing:
    entries = [
        Entry(f"{image}.jpg", str(whole_number(vehicle, place)), split, place, below="image")
        for split, name in (("train", "train_list.txt"), ("test", test_list))
        for place, (image, vehicle) in text_rows(folder / "train_test_split" / name, "image_name vehicle_id")
    ]
    return Listing(entries, classes={entry.class_id: entry.class_id for entry in entries})
