"""What each of several processes does with a sharded loss; a process that is spawned can import this file."""

import torch
from torch import distributed

from softwarp import processes
from softwarp.losses import build_loss
from softwarp.losses.sharding import ShardedLoss

SIZE = 5
SHARES = (3, 1, 4, 3)  # of the samples, by rank: uneven
LOSSES = {
    "warped_softmax": {"alpha": 4.0, "k1": 0.8, "k2": 1.3, "scale": 1.7, "delta": 1.2},
    "euclidean_softmax": {"scale": 2.0},
    "proxy_nca_pp": {},
    "normalized_softmax": {},
    "cosface": {"scale": 9.0},
    "arcface": {"scale": 9.0},
    "sphereface": {"first_plain": 1.0, "last_plain": 0.5},
    "large_margin_softmax": {"first_plain": 1.0, "last_plain": 0.5},
    "magface": {"scale": 9.0, "lower_norm": 3.0, "upper_norm": 9.0},
    "l2_softmax": {},
    "cross_entropy": {"feature_norm": True},
}
AUTOMATIC = {
    "warped_softmax": {"alpha": "auto", "scale": "auto", "k1": 0.8, "k2": 1.3},
    "euclidean_softmax": {"scale": "auto"},
}


def problem(name, settings, classes):
    """A loss over so many classes, and a batch, in double precision; some embeddings are long."""
    generator = torch.Generator().manual_seed(classes)
    loss = build_loss(name, classes, SIZE, **settings).double()
    for parameter in loss.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).double()
    embeddings = 3 * torch.randn(sum(SHARES), SIZE, generator=generator).double()
    return loss, embeddings, torch.randint(classes, (sum(SHARES),), generator=generator)


def share(batch, world, rank):
    """The rank's part of the batch: the last rank has what is left."""
    start = sum(SHARES[:rank])
    return batch[start : start + SHARES[rank]] if rank < world - 1 else batch[start:]


def one_step(name, settings, classes, rank, world, rate=1.0):
    loss, embeddings, labels = problem(name, settings, classes)
    sharded = ShardedLoss(loss, sample_rate=rate, seed=7).train()
    own = share(embeddings, world, rank).clone().requires_grad_()
    everyone = processes.whole_batch(own, share(labels, world, rank))
    with sharded.sampled(everyone[1]):
        torch.manual_seed(3 + rank)  # the main process decides what dropout drops
        value = sharded(*everyone)
        value.backward()
        return {
            "value": value.detach(),
            "embeddings": own.grad / world,
            "columns": sharded.columns.clone(),
            "rows": {key: each.grad for key, each in sharded.loss.named_parameters()},
        }


def automatic_steps(name, classes):
    """Three steps of Adam with measured settings: what they were, and what became of the class vectors."""
    loss, embeddings, labels = near_proxies(name, classes)
    return steps(ShardedLoss(loss).train(), embeddings, labels)


def near_proxies(name, classes):
    """A batch around its own proxies, where the gap decides on the scale."""
    loss, embeddings, labels = problem(name, AUTOMATIC[name], classes)
    return loss, loss.proxies.detach()[labels] + embeddings / 30, labels


def steps(loss, embeddings, labels):
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.1)
    readings = []
    for _ in range(3):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
        readings.append(loss.readings())
    return {"readings": readings, "proxies": next(loss.parameters()).detach().clone()}


def whole_views(classes):
    """What a process knows of class vectors that it does not hold."""
    loss = ShardedLoss(problem("warped_softmax", {}, classes)[0])
    return {
        "here": [loss.here.start, loss.here.stop],
        "vectors": loss.vectors_at(torch.tensor([9, 0, 4, 4])),
        "mean": loss.mean_over_classes(loss.loss.proxies.detach()),
    }


def report(rank, world):
    """Everything that one process of `world` found out."""
    return {
        "plain": {name: one_step(name, LOSSES[name], 11, rank, world) for name in LOSSES},
        "few": {name: one_step(name, LOSSES[name], 4, rank, world) for name in LOSSES},
        "alone": one_step("warped_softmax", LOSSES["warped_softmax"], 1, rank, world),
        "views": whole_views(11),
        "sampled": {name: one_step(name, LOSSES[name], 40, rank, world, 0.3) for name in LOSSES},
        "automatic": {name: automatic_steps(name, 2500) for name in AUTOMATIC},
    }


def work(rank, folder, worlds):
    for world in worlds:
        if rank < world:
            store = f"file://{folder}/store-{world}"
            distributed.init_process_group("gloo", store, rank=rank, world_size=world)
            torch.save(report(rank, world), folder / f"{world}-{rank}.pt")
            distributed.destroy_process_group()
