"""Cars196 (Krause et al., 2013): train on the first 98 car models, test on the others.

The official train and test images are mixed, as in all metric learning papers. Two layouts were published: one folder
car_ims/ with cars_annos.mat; later cars_train/ and cars_test/ with the annotations in devkit/.
"""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.listing import Entry, Listing, Row, first_existing, mat_rows, whole_number
from nearkin.data.benchmarks.registry import Benchmark, register

LAST_TRAIN_CLASS = 98


@register(
    Benchmark(
        name="cars196",
        description="Cars196: 196 car models, split by class",
        source="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (or a mirror of the same files)",
        counts={"train": 8_054, "test": 8_131},
        classes=196,
        layout="cars196/ with car_ims/ and cars_annos.mat, or with cars_train/, cars_test/ and devkit/ "
        "(cars_meta.mat, cars_train_annos.mat, cars_test_annos_withlabels.mat)",
        folders=("cars196", "Cars196", "CARS196", "stanford_cars", "cars"),
        marks=("cars_annos.mat", "devkit/cars_train_annos.mat"),
    )
)
def cars196(folder: Path) -> Listing:
    # Some mirrors of the later layout also contain cars_annos.mat, without the folder it refers to.
    if (folder / "car_ims").is_dir() or not (folder / "devkit").is_dir():
        annotations = folder / "cars_annos.mat"
        rows = mat_rows(annotations, "annotations.relative_im_path", "annotations.class")
        return Listing([_entry(row) for row in rows], _class_names(annotations))
    train = folder / "devkit" / "cars_train_annos.mat"
    test = first_existing(folder, "devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")
    entries = [
        _entry(row, below)
        for annotations, below in ((train, "cars_train"), (test, "cars_test"))
        for row in mat_rows(annotations, "annotations.fname", "annotations.class")
    ]
    return Listing(entries, _class_names(folder / "devkit" / "cars_meta.mat"))


def _entry(row: Row, below: str = "") -> Entry:
    place, (path, number) = row
    split = "train" if whole_number(number, place) <= LAST_TRAIN_CLASS else "test"
    return Entry(path, number, split, place, below)


def _class_names(file: Path) -> dict[str, str]:
    return {str(number): name for number, (_, (name,)) in enumerate(mat_rows(file, "class_names"), start=1)}
