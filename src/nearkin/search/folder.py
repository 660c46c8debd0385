"""The folder of a gallery. It works without the run and its data.

It contains ``gallery.json``, a copy of the model in ``model/``, and the items, unless these are in Milvus.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path

import torch
from torch import nn

import nearkin
from nearkin.errors import ResourceError, UserError
from nearkin.files import cannot_write, open_regular, read_json, sweep, unfinished_folder, write_json
from nearkin.models import Embedder
from nearkin.models.saved import read_spec, saved_weights
from nearkin.search.description import DESCRIPTION, FORMAT, read_description
from nearkin.search.milvus_address import FORMS
from nearkin.search.store import Mode, Store

MODEL_FILES = ("model.json", "model.safetensors")


def create_folder(folder: Path, model: Embedder, store: str) -> Store:
    """Creates the folder, or reuses one made with this model; returns the store."""
    if (folder / DESCRIPTION).exists():
        _refuse_another(folder, model, store)
        sweep(folder)
    else:
        _write(folder, model, store)
    return open_store(store, folder, model.dim, "write")


def open_folder(folder: Path, backbone: nn.Module | None, store: str) -> tuple[Embedder, Store]:
    """Returns the model and the store; refuses a folder whose items were embedded by another model.

    ``store`` must repeat the address in the gallery: an address that comes with a gallery is not trusted.
    """
    description = read_description(folder)
    if description["store"] and not store:
        raise UserError(
            f"the items of {folder} are stored in {description['store']}, and nearkin connects only to an address "
            f'that you name; if you trust it, pass store="{description["store"]}"'
        )
    _refuse_another_store(folder, description["store"], store)
    model = Embedder.load(folder / "model", backbone)
    if _digest(folder / "model") != description["model"] or model.dim != description["dim"]:
        raise UserError(
            f"the items in {folder} were not embedded by the model in its model/ folder; "
            "restore the original model, or index again into another folder"
        )
    return model, open_store(store, folder, description["dim"], "read")


def open_store(address: str, folder: Path, dim: int, mode: Mode = "create") -> Store:
    """Opens the store of a gallery.

    Args:
        address: "" for files in the gallery's folder; ``milvus://host:19530/collection`` for a Milvus cluster, with
            ``?tls`` at the end for an encrypted connection; ``milvus:///folder/file.db`` for embedded Milvus, or
            ``milvus://./file.db`` for its file in the gallery's folder.
        folder: the gallery's folder.
        dim: dimension of the vectors.
        mode: "create" creates the store if it does not exist; "write" undoes the unfinished change of a killed process;
            "read" changes nothing until an item is put or removed.

    >>> open_store("redis://localhost", Path(), 64)
    Traceback (most recent call last):
    nearkin.errors.UserError: store 'redis://localhost' is unknown; leave out store to keep the vectors in the \
gallery's folder, or use milvus://host:19530/collection, or milvus://./items.db for a file
    """
    if not address:
        from nearkin.search.local import LocalStore

        return LocalStore(folder, dim, mode)
    if address.startswith("milvus://"):
        from nearkin.search.milvus import open_milvus

        return open_milvus(address, folder, dim, mode)
    raise UserError(
        f"store '{address}' is unknown; leave out store to keep the vectors in the gallery's folder, or use {FORMS}"
    )


def _write(folder: Path, model: Embedder, store: str) -> None:
    """Creates the folder atomically."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not a gallery; choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(folder) as unfinished:
            partial = unfinished / folder.name
            model.save(partial / "model")
            description = {"format": FORMAT, "nearkin": nearkin.__version__, "dim": model.dim}
            write_json(partial / DESCRIPTION, {**description, "model": _digest(partial / "model"), "store": store})
            _refuse_foreign_items(store, partial, model.dim)
            partial.replace(folder)
    except ResourceError as error:
        if isinstance(error.__cause__, OSError):  # it names a file in the temporary folder; name the user's folder
            raise cannot_write(folder, error.__cause__) from error
        raise
    except OSError as error:
        if (folder / DESCRIPTION).exists():  # another process created it first
            return _refuse_another(folder, model, store)
        raise cannot_write(folder, error) from error


def _refuse_foreign_items(store: str, folder: Path, dim: int) -> None:
    """Refuses a store that has items: vectors of two models cannot be compared, even if their dimensions are equal."""
    with closing(open_store(store, folder, dim)) as opened:  # a wrong address fails here too
        if len(opened):
            raise UserError(
                f"{store} contains {len(opened):,} items of another gallery; "
                "choose another collection, or copy that gallery's folder"
            )


def _refuse_another(folder: Path, model: Embedder, store: str) -> None:
    description = read_description(folder)
    if not _is_saved_in(folder / "model", model):
        raise UserError(f"{folder} was made with another model; choose another folder, or index with that model")
    _refuse_another_store(folder, description["store"], store)


def _refuse_another_store(folder: Path, used: str, store: str) -> None:
    if used != store:
        raise UserError(
            f"the items of {folder} are stored in {used or 'its own folder'}, not in {store or 'its own folder'}; "
            "use the same store, or choose another folder"
        )


def _is_saved_in(folder: Path, model: Embedder) -> bool:
    spec = read_spec(folder)
    saved, ours = saved_weights(folder), model.model.state_dict()
    return (
        spec == model.model.spec
        and saved.keys() == ours.keys()
        and all(torch.equal(tensor, ours[name].cpu()) for name, tensor in saved.items())
    )


def _digest(model: Path) -> str:
    """SHA-256 of a saved model: its specification and its weights."""
    description, weights = (model / name for name in MODEL_FILES)
    spec = read_json(description)["spec"]
    with open_regular(weights, follow=False) as stream:
        digest = hashlib.file_digest(stream, "sha256")
    digest.update(json.dumps(spec, sort_keys=True).encode())
    return digest.hexdigest()
