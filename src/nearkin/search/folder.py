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
from safetensors.torch import load_file
from torch import nn

import nearkin
from nearkin.errors import OutOfRoom, UserError
from nearkin.files import cannot_write, check_regular, open_regular, read_json, unfinished_folder, write_json
from nearkin.models import Embedder, ModelSpec
from nearkin.search.milvus_address import FORMS
from nearkin.search.store import Store

FORMAT = 1
DESCRIPTION = "gallery.json"
MODEL_FILES = ("model.json", "model.safetensors")


def create_folder(folder: Path, model: Embedder, store: str) -> Store:
    """Makes the folder, or takes the one that is there if this model made it; returns its items."""
    if (folder / DESCRIPTION).exists():
        _refuse_another(folder, model, store)
    else:
        _write(folder, model, store)
    return open_store(store, folder, model.dim, create=False)


def open_folder(folder: Path, backbone: nn.Module | None) -> tuple[Embedder, Store]:
    """The model and the items; refuses a folder in which they do not belong together."""
    made = _description(folder)
    model = Embedder.load(folder / "model", backbone)
    if _digest(folder / "model") != made["model"] or model.dim != made["dim"]:
        raise UserError(
            f"the items in {folder} were embedded by another model than the one in its model/ folder; "
            "put that back, or index again into another folder"
        )
    return model, open_store(made["store"], folder, made["dim"], create=False)


def open_store(address: str, folder: Path, dim: int, create: bool = True) -> Store:
    """The store of a gallery.

    Args:
        address: empty for files in the gallery's folder; ``milvus://host:19530/collection`` for a Milvus cluster, with
            ``?tls`` at its end for an encrypted connection; ``milvus:///folder/file.db``, or ``milvus://./file.db`` in
            the gallery's folder, for embedded Milvus.
        folder: the gallery's.
        dim: of the vectors.
        create: whether it is made where there is none.

    >>> open_store("redis://localhost", Path(), 64)
    Traceback (most recent call last):
    nearkin.errors.UserError: the store 'redis://localhost' is unknown; leave it out to keep the vectors in the \
gallery's folder, or write milvus://host:19530/collection, or milvus://./items.db for a file
    """
    if not address:
        from nearkin.search.local import LocalStore

        return LocalStore(folder, dim, create)
    if address.startswith("milvus://"):
        from nearkin.search.milvus import open_milvus

        return open_milvus(address, folder, dim, create)
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
    if made["store"] != store:
        raise UserError(
            f"the items of {folder} are kept in {made['store'] or 'its own folder'}, not in "
            f"{store or 'its own folder'}; choose another folder, or the same store"
        )


def _is_saved_in(folder: Path, model: Embedder) -> bool:
    description, weights = (folder / name for name in MODEL_FILES)
    saved, ours = load_file(check_regular(weights, follow=False)), model.model.state_dict()
    return (
        ModelSpec.from_json(read_json(description)["spec"]) == model.model.spec
        and saved.keys() == ours.keys()
        and all(torch.equal(tensor, ours[name].cpu()) for name, tensor in saved.items())
    )


def _description(folder: Path) -> dict[str, Any]:
    file = folder / DESCRIPTION
    if not file.is_file():
        raise UserError(f"{folder} is not a gallery ({DESCRIPTION} is missing); index images to make one")
    try:
        made = read_json(file)
        if int(made["format"]) <= FORMAT:
            return {"dim": int(made["dim"]), "model": str(made["model"]), "store": str(made["store"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read ({error}); index again into another folder") from error
    raise UserError(
        f"{folder} was made by a newer nearkin ({made.get('nearkin')}, format {made['format']}; this one reads up to "
        f"{FORMAT}); upgrade nearkin to use it"
    )


def _digest(model: Path) -> str:
    """SHA-256 over what a saved model is: its specification and its weights."""
    description, weights = (model / name for name in MODEL_FILES)
    spec = read_json(description)["spec"]
    with open_regular(weights, follow=False) as stream:
        digest = hashlib.file_digest(stream, "sha256")
    digest.update(json.dumps(spec, sort_keys=True).encode())
    return digest.hexdigest()
