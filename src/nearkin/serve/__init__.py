"""A web page and an API for a gallery: search by image, browse neighbours, see a map of the items."""

from nearkin.serve.server import serve

__all__ = ["serve"]
