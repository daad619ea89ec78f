"""How the warped softmax and its two companions are tried."""

from support import references_own as references
from support import references_surrogates as surrogates
from support.loss_cases import Case


def warped_softmax(embeddings, labels, state, *, scale=1.0, delta=1.0, **_):
    warp = {name: state[name] for name in ("alpha", "k1", "k2")}
    losses, *_ = references.warped_softmax(
        embeddings, state["proxies"], labels, scale=scale, delta=delta, **warp
    )
    return float(losses.mean())


def euclidean_softmax(embeddings, labels, state, *, scale=1.0):
    losses, *_ = references.warped_softmax(
        embeddings, state["proxies"], labels, alpha=0.0, k1=1.0, k2=1.0, scale=scale
    )
    return float(losses.mean())


def proxy_nca_pp(embeddings, labels, state, *, scale=9.0):
    return float(references.proxy_nca_pp(embeddings, state["proxies"], labels, scale=scale).mean())


CASES: dict[str, Case] = {
    "warped_softmax": Case(
        reference=warped_softmax,
        settings={"alpha": 2.0, "k1": 0.7, "k2": 1.3, "scale": 1.5, "delta": 0.5},
        surrogate=surrogates.warped_softmax,
        mutants=(
            ("k1=self.k1,\n", "k1=self.k2,\n"),
            ("scale=scale,\n            delta", "scale=1.0,\n            delta"),
            ("delta=self.delta,\n        )", "delta=1.0,\n        )"),
        ),
    ),
    "euclidean_softmax": Case(
        reference=euclidean_softmax,
        settings={"scale": 1.5},
        mutants=(
            ("alpha=0.0, k1=1.0, k2=1.0, scale=scale", "alpha=0.0, k1=1.0, k2=1.0, scale=1.0"),
            ("alpha=0.0, k1=1.0, k2=1.0, scale=scale", "alpha=0.0, k1=1.0, k2=2.0, scale=scale"),
        ),
    ),
    "proxy_nca_pp": Case(
        reference=proxy_nca_pp,
        mutants=(
            ("2 * scale * unit_embeddings", "scale * unit_embeddings"),
            ("@ unit_proxies.T", "@ proxies.T.to(unit_proxies)"),
        ),
    ),
}
