"""An image folder: one folder per class, optionally under ``train/``, ``validation/`` and ``test/``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearkin.data.dataset import Dataset, encode_labels
from nearkin.data.items import ImageFiles
from nearkin.errors import UserError

SUFFIXES = {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLITS = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}


def load_folder(root: Path) -> Dataset:
    """Reads ``root/<class>/**/<image>``; classes in the order of their names.

    A root that holds only ``train``, ``val``/``validation`` and ``test`` folders is read as an official split.
    """
    folders = _subfolders(root)
    if not folders:
        hint = "images but no class folders" if images_below(root) else "no class folders"
        raise UserError(f"{root} holds {hint}; expected one folder per class: {root}/<class>/<image>")
    names = {folder.name.lower() for folder in folders}
    if "train" in names and names <= SPLITS.keys():
        rows = [
            (path, label, SPLITS[part.name.lower()])
            for part in folders
            for path, label in _labelled_images(_subfolders(part), part)
        ]
    else:
        rows = [(path, label, "") for path, label in _labelled_images(folders, root)]
    labels, classes = encode_labels([label for _, label, _ in rows])
    return Dataset(
        name=root.resolve().name,
        items=ImageFiles([path for path, _, _ in rows]),
        labels=labels,
        classes=classes,
        split=np.array([split for _, _, split in rows]) if rows[0][2] else None,
    )


def load_unlabelled(root: Path) -> Dataset:
    """Every image below ``root``, all of one nameless class: enough to embed, not to train or to measure."""
    paths = images_below(root)
    if not paths:
        raise UserError(f"{root} holds no images ({', '.join(sorted(SUFFIXES))})")
    return Dataset(root.resolve().name, ImageFiles(paths), np.zeros(len(paths), dtype=np.int64), [""])


def images_below(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _labelled_images(folders: list[Path], root: Path) -> list[tuple[Path, str]]:
    if not folders:
        raise UserError(f"{root} holds no class folders; expected one folder per class: {root}/<class>/<image>")
    images = {folder: images_below(folder) for folder in folders}
    empty = [folder for folder, paths in images.items() if not paths]
    if empty:
        raise UserError(
            f"class folder {empty[0]} holds no images"
            + (f" (and {len(empty) - 1} more like it)" if len(empty) > 1 else "")
            + "; add images or remove the folder"
        )
    return [(path, folder.name) for folder, paths in images.items() for path in paths]


def _subfolders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
