"""A network of each family that timm has, small where timm lets us make it so."""

SMALL_VIT = {"embed_dim": 32, "depth": 1, "num_heads": 2}
FAMILIES = {  # name -> what makes it small
    "vit_small_patch14_dinov2": SMALL_VIT,
    "vit_small_patch14_reg4_dinov2": SMALL_VIT,
    "vit_small_patch16_dinov3": SMALL_VIT,
    "vit_base_patch16_siglip_224": SMALL_VIT,
    "vit_base_patch16_clip_224": SMALL_VIT,
    "eva02_tiny_patch14_224": SMALL_VIT,
    "deit_tiny_distilled_patch16_224": SMALL_VIT,
    "tiny_vit_5m_224": {"embed_dims": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
    "swin_tiny_patch4_window7_224": {"embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)},
    "test_efficientnet": {},
    "test_resnet": {},
    "mobilenetv4_conv_small_035": {},
}


def make_small(monkeypatch):
    """All networks of these names that timm builds from now on are small."""
    import timm

    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, **options: create(name, **options, **FAMILIES.get(name, {}))
    )
