"""The cases of the proxy and classifier losses besides the warped softmax."""

from support import references_proxy
from support.loss_cases import Case

CASES: dict[str, Case] = {
    "power": Case(
        references_proxy.power,
        mutants=(
            ("own=warp, other=warp", "own=warp"),
            ("warp = power(exponent)", "warp = power(exponent + 0.5)"),
        ),
    ),
    "scaled": Case(
        references_proxy.scaled,
        mutants=(
            ("own=scaled(factor)", "own=scaled(factor), other=scaled(factor)"),
            ("own=scaled(factor)", "other=scaled(factor)"),
        ),
    ),
    "magface": Case(
        references_proxy.magface,
        mutants=(
            ("sine * angle.sin()", "sine"),
            ("torch.where(cosines > 0, turned, cosines)", "turned"),
        ),
        settings={"scale": 8.0, "lower_norm": 0.5, "upper_norm": 4.0},  # that random batches reach
    ),
    "l2_softmax": Case(
        references_proxy.l2_softmax,
        mutants=(
            ("logits = alpha * normalize(wide)", "logits = alpha * wide"),
            ("logits = alpha * normalize", "logits = normalize"),
        ),
    ),
    "cross_entropy": Case(
        references_proxy.cross_entropy,
        mutants=(
            ("others = len(weight) - 1", "others = len(weight)"),
            ("[:, None], 1 - smoothing)", "[:, None], 1.0)"),
        ),
        settings={"dropout": 0.0, "proxy_init": "normal"},  # zero weights hide everything
    ),
    "center_contrastive": Case(
        references_proxy.center_contrastive,
        mutants=(
            ("own - margin)", "own + margin)"),
            ("(2 - 2 * own.squeeze(1))", "(1 - own.squeeze(1))"),
        ),
        settings={"scale": 8.0},
    ),
    "hierarchical_proxies": Case(
        references_proxy.hierarchical_proxies,
        mutants=(
            ("fine + self.weight * coarse", "fine + coarse"),
            ("self.assignment[labels.long()]", "self.assignment[labels.long() * 0]"),
        ),
        settings={"coarse_classes": 2, "weight": 0.7, "refresh": 10**6},  # no new clusters during the trial
    ),
}
