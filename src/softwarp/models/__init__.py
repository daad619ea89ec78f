"""Networks: backbones, pooling, the embedder, weights."""
