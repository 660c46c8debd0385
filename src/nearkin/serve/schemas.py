"""The responses of the API."""

from __future__ import annotations

from pathlib import PurePath

from pydantic import BaseModel, Field

from nearkin.search.store import Entry, Hit


class Item(BaseModel):
    """An item of the gallery. Its image is at /api/items/{id}/image, and smaller at /api/items/{id}/thumbnail."""

    id: int = Field(description="Identifies the item in other requests.")
    name: str = Field(description="The file name and the name of its folder.")
    label: str = Field(description="The class of the item; empty if it has none.")

    @classmethod
    def of(cls, id: int, entry: Entry) -> Item:
        return cls(id=id, name=shown_name(entry.path), label=entry.label)


class Neighbour(Item):
    """A search result."""

    distance: float = Field(description="Euclidean distance between the embeddings of query and item.")

    @classmethod
    def of_hit(cls, hit: Hit) -> Neighbour:
        return cls(**Item.of(hit.id, hit.entry).model_dump(), distance=hit.distance)


class SearchResponse(BaseModel):
    """The neighbours of a query, nearest first."""

    item: Item | None = Field(description="The query, if it is an item of the gallery.")
    neighbours: list[Neighbour]


class Label(BaseModel):
    label: str
    items: int = Field(description="Number of items with this label.")


class Point(BaseModel):
    """An item on the map."""

    id: int
    x: float = Field(description="From 0 (left) to 1 (right).")
    y: float = Field(description="From 0 (top) to 1 (bottom).")
    label: str


class Map(BaseModel):
    ready: bool = Field(description="False while the map is being computed or updated; try again in a second.")
    points: list[Point] = Field(description="The points of the previous map while the map is being updated.")


class Health(BaseModel):
    status: str = "ok"
    version: str = Field(description="Version of nearkin.")
    items: int = Field(description="Number of items in the gallery.")
    max_upload_mb: int = Field(description="Maximum size of an upload in megabytes.")


class Problem(BaseModel):
    """The response to a request that is refused."""

    detail: str = Field(description="One sentence that says what is wrong and what to do.")


def shown_name(path: str) -> str:
    """The last two parts of a path: enough to recognise a file, without revealing the server's folders.

    >>> shown_name("/home/ada/photos/roses/17.jpg"), shown_name("/17.jpg")
    ('roses/17.jpg', '17.jpg')
    """
    whole = PurePath(path)
    return "/".join(part for part in whole.parts[-2:] if part != whole.anchor)
