"""The web page of a gallery: search by image, go from neighbour to neighbour, see the map of the space."""

from nearkin.serve.server import serve

__all__ = ["serve"]
