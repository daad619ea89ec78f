"""The embedding model: backbone -> max + average pooling -> layer norm without affine -> linear."""

from torch import Tensor, nn

from softwarp.models.backbones import build_backbone


class Embedder(nn.Module):
    """Images [N, channels, H, W] of bytes or floats 0..255 in, embeddings [N, embedding_size] out.

    >>> import torch
    >>> Embedder("small_conv", 16)(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 16])
    """

    def __init__(self, backbone: str, embedding_size: int) -> None:
        super().__init__()
        self.backbone = build_backbone(backbone)
        self.norm = nn.LayerNorm(self.backbone.channels, elementwise_affine=False)
        self.head = nn.Linear(self.backbone.channels, embedding_size)
        nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images.float() / 255)
        pooled = features.amax(dim=(2, 3)) + features.mean(dim=(2, 3))
        embeddings: Tensor = self.head(self.norm(pooled))
        return embeddings
