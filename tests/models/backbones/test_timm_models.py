"""timm models as backbones."""

from __future__ import annotations

import timm
import torch

from nearkin.data.transforms import Preprocess
from nearkin.models import EmbeddingModel, ModelSpec, preprocess_of

GREY = Preprocess(size=16, resize=16, channels=1, mean=(0.5,), std=(0.5,))
TIMM = "test_resnet.r160_in1k"  # 0.5 million parameters


def test_timm_backbones_have_their_own_preprocessing() -> None:
    expected = timm.data.resolve_model_data_config(timm.create_model(TIMM, pretrained=False))
    preprocess = preprocess_of(TIMM, None)
    assert preprocess.size == expected["input_size"][-1]
    assert preprocess.mean == tuple(expected["mean"]) and preprocess.std == tuple(expected["std"])
    assert preprocess.interpolation == expected["interpolation"]
    assert preprocess.resize == round(preprocess.size / expected["crop_pct"])
    assert preprocess_of(TIMM, 64).size == 64


def test_a_timm_model_embeds_as_timm_would() -> None:
    preprocess = preprocess_of(TIMM, 32)
    model = EmbeddingModel(ModelSpec(TIMM, 4, "never", preprocess)).eval()
    reference = timm.create_model(TIMM, pretrained=False, num_classes=0).eval()
    reference.load_state_dict(model.backbone.state_dict())
    x = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocess.mean, preprocess.std))
    expected = model.head(reference((x / 255 - mean) / std))
    assert torch.allclose(model(x), expected, atol=1e-5)
