"""What the paper's authors ran, typed from Image-Retrieval/config.json and train.py of their repository.

Not from our recipes, which are tested against it.
"""

from typing import NamedTuple


class Phase(NamedTuple):
    epochs: int
    learning_rate: float
    proxy_learning_rate: float
    scale: float  # "temp"
    alpha: float
    k1: float
    k2: float


class Settings(NamedTuple):
    classes: int  # in a batch
    samples: int  # batch_size // classes_per_batch
    delta: float  # "margin", kept in the second phase
    first: Phase
    second: Phase  # "followup"


AUTHORS = {
    "cub": Settings(
        8,
        8,
        1.30,
        Phase(50 - 30, 0.01, 1.0, 4.5250, 28.40, 0.93, 1.15),
        Phase(30, 0.001, 0.0005, 1.0, 24.68, 0.95, 1.20),
    ),
    "cars": Settings(
        4,
        16,
        1.50,
        Phase(100 - 50, 0.01, 1.0, 5.0, 30.15, 0.80, 1.15),
        Phase(50, 0.001, 0.0005, 1.0, 23.25, 0.50, 1.55),
    ),
    "sop": Settings(
        64,
        3,
        1.348,
        Phase(80 - 20, 0.024, 225.0, 3.7442, 13.024979, 0.8563, 1.1181),
        Phase(20, 0.0075, 0.001, 1.0, 5.841837525406713, 0.8024, 1.6175),
    ),
}
