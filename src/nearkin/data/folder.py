"""Image folders: one folder per class, optionally under ``train/``, ``validation/`` and ``test/``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nearkin.data.dataset import Dataset, encode_labels
from nearkin.data.items import ImageFiles
from nearkin.data.summary import counted
from nearkin.errors import UserError

SUFFIXES = {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Common image formats that are not supported, so that a note can say so. Other files (.txt, .xml) are not images.
UNSUPPORTED = {".arw", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd", ".raw", ".svg"}
HIDDEN = {"desktop.ini", "thumbs.db"}  # and names that begin with a dot
SPLITS = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}


def load_folder(root: Path) -> Dataset:
    """Reads ``root/<class>/**/<image>``; classes are sorted by name.

    If the root contains only ``train``, ``val``/``validation`` and ``test`` folders, they become the official split.
    The dataset's ``notes`` say what was left out and why, except for hidden files.
    """
    found = _Found(root)
    folders = found.subfolders(root)
    names = {folder.name.lower() for folder in folders}
    is_split = "train" in names and names <= SPLITS.keys()
    roots = {folder: SPLITS[folder.name.lower()] for folder in folders} if is_split else {root: ""}
    for above, split in roots.items():
        for folder in found.subfolders(above) if is_split else folders:
            found.read_class(folder, split)
    found.check()
    labels, classes = encode_labels(found.labels)
    return Dataset(
        name=root.resolve().name,
        items=ImageFiles(found.images),
        labels=labels,
        classes=classes,
        split=np.array(found.splits) if is_split else None,
        notes=found.notes(),
    )


def load_unlabelled(root: Path) -> Dataset:
    """Reads every image below ``root`` as one nameless class: enough to embed, but not to train or evaluate."""
    paths = images_below(root)
    if not paths:
        raise UserError(f"{root} contains no images ({', '.join(sorted(SUFFIXES))})")
    return Dataset(root.resolve().name, ImageFiles(paths), np.zeros(len(paths), dtype=np.int64), [""])


def images_below(root: Path) -> list[Path]:
    return sorted(filter(_is_image, _files_below(root)))


@dataclass
class _Found:
    """Everything found in an image folder."""

    root: Path
    images: list[Path] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    loose: list[Path] = field(default_factory=list)  # files outside the class folders
    other: Counter[str] = field(default_factory=Counter)  # other files in class folders, counted by extension
    empty: list[Path] = field(default_factory=list)  # class folders without images
    nested: Counter[Path] = field(default_factory=Counter)  # images in subfolders of class folders, counted by folder

    def subfolders(self, folder: Path) -> list[Path]:
        """Returns the subfolders of a folder and adds its files to ``loose``."""
        entries = sorted(path for path in folder.iterdir() if not _is_hidden(path.name))
        folders = [path for path in entries if path.is_dir()]
        self.loose += [path for path in entries if not path.is_dir()]
        if not folders:
            hint = "images but no class folders" if any(map(_is_image, self.loose)) else "no class folders"
            raise UserError(f"{folder} contains {hint}; expected one folder per class: {folder}/<class>/<image>")
        return folders

    def read_class(self, folder: Path, split: str) -> None:
        files = sorted(_files_below(folder))
        images = [path for path in files if _is_image(path)]
        self.images += images
        self.labels += [folder.name] * len(images)
        self.splits += [split] * len(images)
        self.other.update(path.suffix.lower() for path in files if path.suffix.lower() not in SUFFIXES)
        self.nested.update(path.parent for path in images if path.parent != folder)
        if not images:
            self.empty.append(folder)

    def check(self) -> None:
        """Raises if leaving out the classes without images would leave fewer than two."""
        if self.empty and len(set(self.labels)) < 2:
            more = f" (and {len(self.empty) - 1} more like it)" if len(self.empty) > 1 else ""
            unsupported = "".join(f"; {note}" for note in self._unsupported())
            advice = "add images or remove the folder"
            raise UserError(f"class folder {self.empty[0]} contains no images{more}; {advice}{unsupported}")

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if self.loose:
            yield f"ignored {counted(len(self.loose), 'file')} outside the class folders: {self._names(self.loose)}"
        yield from self._unsupported()
        others = {suffix: count for suffix, count in self.other.most_common() if suffix not in UNSUPPORTED}
        if others:
            kinds = ", ".join(f"{count:,} {suffix or 'without extension'}" for suffix, count in others.items())
            yield f"ignored {counted(sum(others.values()), 'file')} in class folders that are not images: {kinds}"
        if self.empty:
            yield f"ignored {counted(len(self.empty), 'class folder')} without images: {self._names(self.empty)}"
        if self.nested:
            images = counted(sum(self.nested.values()), "image")
            yield f"{images} in subfolders belong to the class folder above: {self._names(self.nested)}"
        if len(set(self.labels)) == 1 and len(self.nested) > 1:
            only = self.root / self.labels[0]
            yield f"all images are in one class folder; if its subfolders are the classes, use {only} as the data"

    def _unsupported(self) -> Iterator[str]:
        for suffix, count in self.other.items():
            if suffix in UNSUPPORTED:
                yield f"ignored {counted(count, f'{suffix} file')}: not supported; convert to .jpg"

    def _names(self, paths: Iterable[Path], most: int = 3) -> str:
        names = [str(path.relative_to(self.root)) for path in paths]
        return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _files_below(folder: Path) -> Iterator[Path]:
    """Yields all files except hidden ones and those in hidden folders; does not follow links to folders."""
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        yield from (Path(here, name) for name in files if not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in HIDDEN


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()
