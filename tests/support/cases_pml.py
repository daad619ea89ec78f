"""How the losses from pytorch-metric-learning are tried: references, mutants, settings other than defaults.

Settings are chosen off the defaults where a mutant that forgets one could hide behind the default.
"""

from support import references_pml as references
from support import references_surrogates as surrogates
from support.loss_cases import Case

PAIRS = "its first sample of a class is the anchor, its second the positive: order within a class counts"

CASES: dict[str, Case] = {
    "contrastive": Case(
        reference=references.contrastive,
        settings={"pos_margin": 0.3, "neg_margin": 1.2},
        mutants=(
            ("pos_margin=pos_margin, neg", "pos_margin=0.0, neg"),
            ("neg_margin=neg_margin, distance=lp_distance()", "neg_margin=1.0, distance=lp_distance()"),
            (
                "neg_margin=neg_margin, distance=lp_distance()",
                "neg_margin=neg_margin, distance=lp_distance(power=2)",
            ),
        ),
    ),
    "triplet": Case(
        reference=references.triplet,
        mutants=(
            ("squared = lp_distance(power=2)", "squared = lp_distance()"),
            ("type_of_triplets=mining", 'type_of_triplets="all"'),
            ("margin: float = 0.2, mining", "margin: float = 0.3, mining"),
        ),
    ),
    "n_pair": Case(
        reference=references.n_pair,
        samples=5,  # two rounds, and one sample left out
        order=PAIRS,
        mutants=(
            ("DotProductSimilarity(normalize_embeddings=False)", "DotProductSimilarity()"),
            ("LpRegularizer(power=2)", "LpRegularizer(power=1)"),
            ("embedding_reg_weight=norm_penalty", "embedding_reg_weight=0.0"),
            ("- 1, 2):", "- 1, 4):"),
        ),
    ),
    "lifted_structure": Case(
        reference=references.lifted_structure,
        mutants=(
            ("lp_distance(normalize_embeddings=False)", "lp_distance()"),
            ("neg_margin=margin", "neg_margin=2 * margin"),
        ),
    ),
    "margin": Case(
        reference=references.margin,
        settings={"sampling": "all", "nu": 0.1},
        mutants=(
            ("nu=nu,", "nu=0.0,"),
            ("beta=self.boundaries)", "beta=2 * self.boundaries)"),
            ("margin=margin,\n            beta=beta", "margin=beta,\n            beta=beta"),
        ),
    ),
    "multi_similarity": Case(
        reference=references.multi_similarity,
        mutants=(
            ("MultiSimilarityMiner(epsilon=epsilon)", "MultiSimilarityMiner(epsilon=0.0)"),
            ("beta=beta, base=base)", "beta=beta, base=1.0)"),
            ("alpha=alpha, beta=beta, base", "alpha=beta, beta=alpha, base"),
        ),
    ),
    "circle": Case(
        reference=references.circle,
        surrogate=surrogates.circle,
        mutants=(
            ("m=margin,", "m=margin / 2,"),
            ("m=margin, gamma=gamma)", "m=margin, gamma=gamma / 2)"),
        ),
    ),
    "fast_ap": Case(
        reference=references.fast_ap,
        mutants=(
            ("num_bins=num_bins, distance", "num_bins=num_bins + 1, distance"),
            ("distance=lp_distance(power=2))", "distance=lp_distance(power=1))"),
        ),
    ),
    "supcon": Case(
        reference=references.supcon,
        mutants=(
            ('"SupConLoss", temperature=temperature', '"SupConLoss", temperature=2 * temperature'),
            ("temperature: float = 0.1", "temperature: float = 0.07"),
        ),
    ),
    "proxy_anchor": Case(
        reference=references.proxy_anchor,
        mutants=(
            ("proxies=self.proxies)", "proxies=-self.proxies)"),
            ("margin=margin, alpha=alpha)", "margin=-margin, alpha=alpha)"),
        ),
    ),
    "soft_triple": Case(
        reference=references.soft_triple,
        settings={"centers_per_class": 3, "gamma": 0.2},
        mutants=(
            ("gamma=gamma,", "gamma=0.1,"),
            ("return value + self.tau *", "return value - self.tau *"),
            ("la=scale", "la=scale / 2"),
            ("distances.sum() / (2 *", "distances.sum() / (1 *"),
        ),
    ),
    "normalized_softmax": Case(
        reference=references.normalized_softmax,
        mutants=(
            ("embedding_size, temperature=temperature", "embedding_size, temperature=1.0"),
            ("temperature: float = 0.05", "temperature: float = 0.1"),
        ),
    ),
    "large_margin_softmax": Case(
        reference=references.large_margin_softmax,
        settings={"margin": 3, "first_plain": 4.0, "last_plain": 0.5},
        mutants=(
            ('pml_name = "LargeMarginSoftmaxLoss"', 'pml_name = "SphereFaceLoss"'),
            ("/ (1 + plain)", "/ (2 + plain)"),
            ("(plain * own + with_margin(own))", "(plain * own - with_margin(own))"),
            ("clamp_min(last)", "clamp_max(last)"),
        ),
    ),
    "sphereface": Case(
        reference=references.sphereface,
        # proxies of length 1 could not tell it from the large-margin softmax
        settings={"margin": 3, "first_plain": 0.0, "last_plain": 0.0, "proxy_init": "normal"},
        mutants=(
            ('pml_name = "SphereFaceLoss"', 'pml_name = "LargeMarginSoftmaxLoss"'),
            ("pml_classifier(self.pml_name,", 'pml_classifier("CosFaceLoss",'),
        ),
    ),
    "cosface": Case(
        reference=references.cosface,
        mutants=(
            ('"CosFaceLoss",', '"ArcFaceLoss",'),
            ("margin: float = 0.35", "margin: float = 0.4"),
        ),
    ),
    "arcface": Case(
        reference=references.arcface,
        mutants=(
            ("degrees = math.degrees(margin)", "degrees = margin"),
            ("margin: float = 0.5", "margin: float = 0.4"),
        ),
    ),
}
