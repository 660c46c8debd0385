"""A gallery's folder, which works without the run or its data.

It holds ``gallery.json``, ``model/`` (a copy) and, unless they are kept elsewhere, the items.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nearkin
from nearkin.errors import OutOfRoom, UserError
from nearkin.files import cannot_write, open_regular, read_json, sweep, unfinished_folder, write_json
from nearkin.models import Embedder
from nearkin.models.saved import read_spec, saved_weights
from nearkin.search.milvus_address import FORMS
from nearkin.search.store import Mode, Store

FORMAT = 1
DESCRIPTION = "gallery.json"
MODEL_FILES = ("model.json", "model.safetensors")


def create_folder(folder: Path, model: Embedder, store: str) -> Store:
    """Makes the folder, or takes the one that is there if this model made it; returns its items."""
    if (folder / DESCRIPTION).exists():
        _refuse_another(folder, model, store)
        sweep(folder)
    else:
        _write(folder, model, store)
    return open_store(store, folder, model.dim, "write")


def open_folder(folder: Path, backbone: nn.Module | None, store: str) -> tuple[Embedder, Store]:
    """The model and the items; refuses a folder in which they do not belong together.

    ``store`` must be the one that the gallery names: an address that comes with a gallery is not trusted.
    """
    made = _description(folder)
    if made["store"] and not store:
        raise UserError(
            f"the items of {folder} are kept in {made['store']}, and nothing is connected to unasked; "
            f'if you trust it, pass store="{made["store"]}"'
        )
    _refuse_another_store(folder, made["store"], store)
    model = Embedder.load(folder / "model", backbone)
    if _digest(folder / "model") != made["model"] or model.dim != made["dim"]:
        raise UserError(
            f"the items in {folder} were embedded by another model than the one in its model/ folder; "
            "put that back, or index again into another folder"
        )
    return model, open_store(store, folder, made["dim"], "read")


def open_store(address: str, folder: Path, dim: int, mode: Mode = "create") -> Store:
    """The store of a gallery.

    Args:
        address: empty for files in the gallery's folder; ``milvus://host:19530/collection`` for a Milvus cluster, with
            ``?tls`` at its end for an encrypted connection; ``milvus:///folder/file.db``, or ``milvus://./file.db`` in
            the gallery's folder, for embedded Milvus.
        folder: the gallery's.
        dim: of the vectors.
        mode: "create" makes it where there is none; "write" undoes what a killed process left half done; "read"
            changes nothing, until an item is put or removed.

    >>> open_store("redis://localhost", Path(), 64)
    Traceback (most recent call last):
    nearkin.errors.UserError: the store 'redis://localhost' is unknown; leave it out to keep the vectors in the \
gallery's folder, or write milvus://host:19530/collection, or milvus://./items.db for a file
    """
    if not address:
        from nearkin.search.local import LocalStore

        return LocalStore(folder, dim, mode)
    if address.startswith("milvus://"):
        from nearkin.search.milvus import open_milvus

        return open_milvus(address, folder, dim, mode)
    raise UserError(
        f"the store '{address}' is unknown; leave it out to keep the vectors in the gallery's folder, or write {FORMS}"
    )


def _write(folder: Path, model: Embedder, store: str) -> None:
    """Makes the folder whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not a gallery; choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(folder) as unfinished:
            begun = unfinished / folder.name
            model.save(begun / "model")
            made = {"format": FORMAT, "nearkin": nearkin.__version__, "dim": model.dim}
            write_json(begun / DESCRIPTION, {**made, "model": _digest(begun / "model"), "store": store})
            _refuse_foreign_items(store, begun, model.dim)
            begun.replace(folder)
    except OutOfRoom as error:
        if isinstance(error.__cause__, OSError):  # then it names a file of the unfinished folder, which nobody knows
            raise cannot_write(folder, error.__cause__) from error
        raise
    except OSError as error:
        if (folder / DESCRIPTION).exists():  # another process was faster
            return _refuse_another(folder, model, store)
        raise cannot_write(folder, error) from error


def _refuse_foreign_items(store: str, folder: Path, dim: int) -> None:
    """Vectors of two models have nothing to do with each other, even where they are equally long."""
    with closing(open_store(store, folder, dim)) as opened:  # an address that leads nowhere is noticed here too
        if len(opened):
            raise UserError(
                f"{store} holds {len(opened):,} items of another gallery; "
                "name another collection, or copy the folder of that gallery"
            )


def _refuse_another(folder: Path, model: Embedder, store: str) -> None:
    made = _description(folder)
    if not _is_saved_in(folder / "model", model):
        raise UserError(f"{folder} was made by another model; choose another folder, or index with that model")
    _refuse_another_store(folder, made["store"], store)


def _refuse_another_store(folder: Path, kept: str, store: str) -> None:
    if kept != store:
        raise UserError(
            f"the items of {folder} are kept in {kept or 'its own folder'}, not in {store or 'its own folder'}; "
            "choose another folder, or the same store"
        )


def _is_saved_in(folder: Path, model: Embedder) -> bool:
    spec = read_spec(folder)
    saved, ours = saved_weights(folder), model.model.state_dict()
    return (
        spec == model.model.spec
        and saved.keys() == ours.keys()
        and all(torch.equal(tensor, ours[name].cpu()) for name, tensor in saved.items())
    )


def _description(folder: Path) -> dict[str, Any]:
    file = folder / DESCRIPTION
    if (folder / "model").is_symlink():
        raise UserError(f"{folder / 'model'} is a link, and is not followed; put a copy of the model in its place")
    if not file.is_file():
        raise UserError(f"{folder} is not a gallery ({DESCRIPTION} is missing); index images to make one")
    try:
        made = dict(read_json(file))
        newer = type(made["format"]) is int and made["format"] > FORMAT
        kinds = [type(made.get(name)) for name in ("format", "dim", "model", "store")]
        if not newer and (kinds != [int, int, str, str] or not made["store"].isprintable()):
            raise ValueError("its values are not those of a gallery")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read ({error}); index again into another folder") from error
    if newer:
        raise UserError(
            f"{folder} was made by a newer nearkin (format {made['format']}; this one reads up to {FORMAT}); "
            "upgrade nearkin to use it"
        )
    return made


def _digest(model: Path) -> str:
    """SHA-256 over what a saved model is: its specification and its weights."""
    description, weights = (model / name for name in MODEL_FILES)
    spec = read_json(description)["spec"]
    with open_regular(weights, follow=False) as stream:
        digest = hashlib.file_digest(stream, "sha256")
    digest.update(json.dumps(spec, sort_keys=True).encode())
    return digest.hexdigest()
