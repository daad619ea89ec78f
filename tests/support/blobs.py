"""Features that tests make: classes in a few directions, noise in others."""

import torch


def blobs(classes=6, images=8, size=10, seed=0):
    """Classes differ along the first half of the axes, images of a class far more along the second."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, size, generator=generator)
    centres[:, size // 2 :] = 0
    noise = 0.1 * torch.randn(classes * images, size, generator=generator)
    noise[:, size // 2 :] *= 15
    return centres.repeat_interleave(images, 0) + noise + 3, torch.arange(classes).repeat_interleave(images)
