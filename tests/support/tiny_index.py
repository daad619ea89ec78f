"""A small index, and what tests compare of one."""

import numpy as np
import torch
from PIL import Image

from softwarp.data.glyphs import STYLES, load_glyphs
from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.inference import EmbeddingModel
from softwarp.models.embedder import Embedder


def glyph_files(root, *, first=None, classes=6, styles=4):
    """Glyphs as files, a folder per character; from A on unless told otherwise."""
    glyphs = load_glyphs()
    first = glyphs.characters.index("A") if first is None else first
    for label in range(first, first + classes):
        for style in range(styles):
            path = root / f"U+{ord(glyphs.characters[label]):04X}" / f"{STYLES[style]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(glyphs.images[label * len(STYLES) + style, 0].numpy()).save(path)
    return root


def vector_index(folder, vectors, *, distance="euclidean", kind="auto", labels=None):
    """An index of vectors that come from nowhere; paths are their numbers."""
    index = Index.create(folder, dimensions=vectors.shape[1], distance=distance, kind=kind)
    labels = labels or [None] * len(vectors)
    index.append(vectors, [NewImage(f"{row}.jpg", label) for row, label in enumerate(labels)])
    return index


def tiny_model(dimensions):
    """An untrained network."""
    torch.manual_seed(0)
    network, cpu = Embedder("small_conv", dimensions).eval(), torch.device("cpu")
    return EmbeddingModel(network, "euclidean", resize=32, crop=32, device=cpu, source="tiny")


def glyph_index(root, **settings):
    """An index of glyph files with an untrained network, which embeds what is not in it, too."""
    torch.manual_seed(0)
    network = Embedder("small_conv", 16).eval()
    model = EmbeddingModel(
        network, "euclidean", resize=32, crop=32, device=torch.device("cpu"), source="tiny"
    )
    images = glyph_files(root / "images", **settings)
    index = Index.create(root / "index", dimensions=16, distance="euclidean", root=images, model=model)
    index.add([images])
    return index


def brute_force(queries, vectors, distance):
    """Distances [Q, N] by float64."""
    queries, vectors = queries.astype(np.float64), vectors.astype(np.float64)
    if distance == "cosine":
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return 1 - queries @ vectors.T
    return np.sqrt(((queries[:, None] - vectors[None]) ** 2).sum(-1))


def state(index):
    """Path, class, digest and vector of every item, whatever their ids and order are."""
    vectors = np.asarray(index.vectors)
    return {
        item.path: (item.label, item.digest, vectors[row].tobytes()) for row, item in enumerate(index.items)
    }
