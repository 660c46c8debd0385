"""The answers of the API."""

from __future__ import annotations

from pathlib import PurePath

from pydantic import BaseModel, Field

from nearkin.search.store import Entry, Hit


class Item(BaseModel):
    """An item of the gallery; its pictures are at /api/items/{id}/thumbnail and /api/items/{id}/picture."""

    id: int = Field(description="Names the item in all other requests.")
    name: str = Field(description="The file's name and its folder's.")
    label: str = Field(description="Its class; empty where it has none.")

    @classmethod
    def of(cls, id: int, entry: Entry) -> Item:
        return cls(id=id, name=shown_name(entry.path), label=entry.label)


class Neighbour(Item):
    """An item that was found."""

    distance: float = Field(description="Euclidean distance from the query in the embedding: 0 is the same.")

    @classmethod
    def of_hit(cls, hit: Hit) -> Neighbour:
        return cls(**Item.of(hit.id, hit.entry).model_dump(), distance=hit.distance)


class SearchResponse(BaseModel):
    """The neighbours of a query, nearest first."""

    item: Item | None = Field(description="The query, where it is an item of the gallery.")
    neighbours: list[Neighbour]


class Label(BaseModel):
    label: str
    items: int = Field(description="How many items have it.")


class Point(BaseModel):
    """An item on the map of the space."""

    id: int
    x: float = Field(description="From 0 (left) to 1 (right).")
    y: float = Field(description="From 0 (top) to 1 (bottom).")
    label: str


class Map(BaseModel):
    ready: bool = Field(description="False while it, or a newer one, is being computed; ask again in a second.")
    points: list[Point] = Field(description="Of the previous map while a newer one is being computed.")


class Health(BaseModel):
    status: str = "ok"
    version: str = Field(description="Of nearkin.")
    items: int = Field(description="In the gallery.")
    max_upload_mb: int = Field(description="The largest file a search takes.")


class Problem(BaseModel):
    """The answer to every request that is refused."""

    detail: str = Field(description="One sentence: what was wrong and what to do.")


def shown_name(path: str) -> str:
    """The last two parts of a path: enough to recognise a file, and nothing about the server's disk.

    >>> shown_name("/home/ada/photos/roses/17.jpg"), shown_name("/17.jpg")
    ('roses/17.jpg', '17.jpg')
    """
    whole = PurePath(path)
    return "/".join(part for part in whole.parts[-2:] if part != whole.anchor)
