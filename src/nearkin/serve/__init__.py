"""The web page of a gallery: search by picture, walk from neighbour to neighbour, look at the map of the space."""

from nearkin.serve.server import serve

__all__ = ["serve"]
