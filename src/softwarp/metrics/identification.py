"""Identification, 1:N: who in a gallery is this, and is it anyone in the gallery at all?"""

from collections.abc import Sequence

import numpy as np
import torch

from softwarp.metrics.checks import Array, Labels, check_labels, numbered
from softwarp.metrics.neighbours import nearest_neighbours
from softwarp.metrics.retrieval import retrieval_per_query


def identification_metrics(
    probes: Array,
    people: Labels,
    gallery: Array,
    gallery_people: Labels,
    *,
    ranks: Sequence[int] = (1, 5, 10),
    fpirs: Sequence[float] = (1e-1, 1e-2),
    distance: str = "euclidean",
) -> dict[str, float]:
    """`rank@K` and, if some probes show nobody of the gallery, `tpir@fpir=F`; counts `mated` and `others`.

    - rank@K: share of the probes of people in the gallery that have one of them among their K nearest;
    - tpir@fpir=F: share of those whose nearest is the right person and nearer than the threshold at which at
      most a share F of the other probes finds anyone; with fewer than 1 / F of these, at which none does.

    >>> gallery, who = torch.tensor([[0.0], [5.0]]), torch.tensor([0, 1])
    >>> probes, asked = torch.tensor([[0.1], [9.0]]), torch.tensor([0, 7])
    >>> found = identification_metrics(probes, asked, gallery, who, ranks=(1,))
    >>> found["rank@1"], found["mated"], found["others"]
    (1.0, 1, 1)
    """
    nearest, places = nearest_neighbours(probes, 1, gallery=gallery, distance=distance)
    sides = numbered(people, gallery_people)
    asked = check_labels(sides[0], len(nearest), nearest.device, "people")
    known = check_labels(sides[1], len(gallery), nearest.device, "gallery_people")
    mated = torch.isin(asked, known)
    if not mated.any():
        raise ValueError("no probe shows a person of the gallery; check the list of templates")
    found = retrieval_per_query(
        torch.as_tensor(probes)[mated.cpu()],
        asked[mated],
        gallery=gallery,
        gallery_labels=known,
        ks=[rank for rank in ranks if rank <= len(gallery)],
        distance=distance,
    )
    result = {
        f"rank@{name.split('@')[1]}": float(each.mean()) for name, each in found.items() if "recall" in name
    }
    strangers = np.sort(nearest[~mated, 0].cpu().numpy())
    right = (known[places[:, 0]] == asked) & mated
    for fpir in fpirs if len(strangers) else ():
        allowed = int(fpir * len(strangers) + 1e-9)
        hits = nearest[right, 0].cpu().numpy() < strangers[min(allowed, len(strangers) - 1)]
        result[f"tpir@fpir={fpir:g}"] = float(hits.sum() / int(mated.sum()))
    return result | {"mated": int(mated.sum()), "others": len(strangers)}
