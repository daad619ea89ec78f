"""Figures of the paper's Tables 3 and 4, which the studies `functions` and `noise` show beside ours."""

# Table 3, on CUB: Recall@1, NMI (geometric in the authors' code) and AvgDTP, by the names in functions.py.
TABLE_3: dict[str, tuple[float, float, float]] = {
    "start": (51.8, 60.8, 13.40),
    "identity": (63.2, 67.1, 12.88),
    "square": (57.2, 64.9, 14.67),
    "root": (61.6, 68.1, 6.48),
    "power_1.5": (62.2, 68.5, 17.20),
    "scaled_0.97": (39.4, 44.0, 84.80),
    "scaled_0.5": (13.6, 26.3, 93.72),
    "scaled_1.1": (60.5, 64.4, 3.86),
    "scaled_2": (54.1, 59.8, 2.18),
    "warp_50": (18.6, 28.7, 50.05),
    "warp_25": (53.9, 60.1, 25.38),
    "warp_7.75": (64.6, 68.5, 7.76),
}
UNSTABLE = ("scaled_0.97", "scaled_0.5")  # in Table 3: the last result before numerical instability

# Table 4, on CUB's test classes: Recall@1 by corruption and loss.
TABLE_4_LOSSES = ("hist", "proxy_nca_pp", "euclidean_softmax", "warped_softmax")
TABLE_4: dict[str, tuple[float, float, float, float]] = {
    "uncorrupted": (71.8, 66.3, 69.4, 72.5),
    "gaussian": (57.2, 51.5, 56.7, 57.7),
    "uniform": (68.7, 63.0, 66.9, 69.1),
    "salt and pepper": (39.5, 33.8, 39.4, 41.0),
    "dropout": (27.5, 22.5, 27.3, 28.9),
    "cutout": (64.5, 54.5, 59.5, 61.6),
    "affine shear": (67.5, 63.4, 67.4, 69.7),
    "jigsaw": (56.4, 45.7, 51.2, 55.6),
    "hue and saturation": (50.2, 44.9, 49.0, 51.1),
    "defocus blur": (46.2, 44.4, 46.1, 47.6),
}
