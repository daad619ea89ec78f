"""Losses with graphs, networks, classifiers and pair statistics, as the conformance suite tries them."""

from support import references_graph as references
from support import references_surrogates as surrogates
from support.loss_cases import Case

CASES: dict[str, Case] = {
    "proxy_nca": Case(
        references.proxy_nca,
        mutants=(
            ("logits.scatter(1, target, -torch.inf)", "logits"),
            ("2 * scale * unit_embeddings", "scale * unit_embeddings"),
        ),
    ),
    "proxy_gml": Case(
        references.proxy_gml,
        mutants=(
            ("(similarities * kept)", "similarities"),
            ("loss + weight * _proxy_loss", "loss - weight * _proxy_loss"),
        ),
        settings={"proxies_per_class": 2, "ratio": 0.6},
    ),
    "sgsl": Case(
        references.sgsl,
        mutants=(
            ("/ (len(weights) - 1) * others", "/ len(weights) * others"),
            ("entropy + triplet, entropy", "entropy, entropy + triplet"),
        ),
        surrogate=surrogates.sgsl,
    ),
    "cbml": Case(
        references.cbml,
        mutants=(
            ("positives & (similarities - margin <", "positives & (similarities + margin <"),
            ("balance * _mean(similarities, positives)", "balance * _mean(similarities, negatives)"),
        ),
        settings={"negative_width": 0.1},
    ),
    "hist": Case(
        references.hist,
        mutants=(
            ("torch.exp(-log_variances.clamp(0, 6))", "torch.exp(-log_variances)"),
            ("(edges / incidence.sum(dim=0))", "edges"),
        ),
        settings={"tau": 4.0, "hidden": 8},
    ),
    "intra_batch": Case(
        references.intra_batch,
        mutants=(
            ("self.network(normalize(wide))", "self.network(wide)"),
            ("self.norm(self.network", "(self.network"),
            ("add_zero_attn=True", "add_zero_attn=False"),
            ("outputs[1:]", "[outputs[-1], outputs[1]]"),
        ),
        settings={"dropout": 0.0, "layers": 2, "concatenate": True},
    ),
    "group_loss": Case(
        references.group_loss,
        mutants=(
            ("(logits / temperature)", "logits"),
            (".relu()", ".abs()"),
        ),
        settings={"anchors": 0, "temperature": 2.0},  # anchors are the first of a batch, whose order counts
    ),
}
