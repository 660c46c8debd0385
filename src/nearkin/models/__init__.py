"""Item to vector: a backbone and an embedding head."""

from nearkin.models.embed import embed_items
from nearkin.models.embedder import Embedder
from nearkin.models.model import EmbeddingModel, ModelSpec
from nearkin.models.pretrained import load_model
from nearkin.models.views import embed_views

__all__ = ["Embedder", "EmbeddingModel", "ModelSpec", "embed_items", "embed_views", "load_model"]
