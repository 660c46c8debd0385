"""Embedding models: a backbone and a head, which turn items into vectors."""

from nearkin.models.backbones import known_backbones, preprocess_of, register_backbone
from nearkin.models.embed import embed_dataset
from nearkin.models.embedder import Embedder
from nearkin.models.model import EmbeddingModel, ModelSpec, wrap_backbone
from nearkin.models.pretrained import load_model
from nearkin.models.weights import init_from

__all__ = [
    "Embedder",
    "EmbeddingModel",
    "ModelSpec",
    "embed_dataset",
    "init_from",
    "known_backbones",
    "load_model",
    "preprocess_of",
    "register_backbone",
    "wrap_backbone",
]
