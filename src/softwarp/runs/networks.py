"""What networks bring and cost on images of one's own: a part of choice.json, and a table."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from softwarp.tables import Cell, Table, counted


class TriedNetwork(BaseModel):
    """A network that may be trained: what held-out training classes say of its features, and what it costs.

    Its values are MAP@R, each class alike, in a closed set of held-out images; None if it was not judged.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    frozen: float | None = None
    calibrated: float | None = None  # with the best shrinkage
    milliseconds: float | None = None  # an image in the network, without decoding
    megabytes: float | None = None  # its weights in memory
    seconds: float = 0.0  # that it took to time and to judge it
    left_out: str = ""  # why it was not judged, or does not count

    @property
    def value(self) -> float | None:
        """The better of both."""
        return max((each for each in (self.frozen, self.calibrated) if each is not None), default=None)

    def sentence(self) -> str:
        """Return in words what was found.

        >>> TriedNetwork(name="tiny", frozen=0.412, calibrated=0.45, milliseconds=8.2).sentence()
        'tiny, MAP@R 41.2 frozen, 45.0 calibrated, 8.2 ms an image'
        >>> TriedNetwork(name="large", left_out="one pass would take 5 minutes").sentence()
        'large is left out: one pass would take 5 minutes'
        """
        if self.left_out:
            return f"{self.name} is left out: {self.left_out}"
        values = {"frozen": self.frozen, "calibrated": self.calibrated}
        said = ", ".join(f"{_percent(each)} {what}" for what, each in values.items() if each is not None)
        return f"{self.name}, MAP@R {said}, {in_milliseconds(self.milliseconds)} ms an image"


def networks_table(networks: Sequence[TriedNetwork], chosen: str) -> Table:
    """Return a row per network: what its features bring, and what it costs."""
    heads = ("network", "frozen", "calibrated", "ms an image", "MB")
    rows = [
        tuple(
            map(
                Cell,
                (
                    each.name + " *" * (each.name == chosen),
                    _percent(each.frozen),
                    _percent(each.calibrated),
                    in_milliseconds(each.milliseconds),
                    "" if each.megabytes is None else f"{each.megabytes:,.0f}",
                ),
            )
        )
        for each in networks
    ]
    return Table(heads, tuple(rows), title="MAP@R of held-out training classes; * was taken", words=1)


def chosen_network(networks: Sequence[TriedNetwork], chosen: str) -> str:
    """Return in words which network was taken, and from how many.

    >>> chosen_network([TriedNetwork(name="a", frozen=0.4), TriedNetwork(name="b", frozen=0.5)], "b")
    'backbone: b, the best of 2 networks on held-out training classes'
    """
    judged, of = sum(_counts(each) for each in networks), counted(len(networks), "network")
    why = {
        0: f"the fastest, because there was no time to compare {of}",
        1: f"the only one of {of} that counts",
    }
    best = f"the best of {judged} networks on held-out training classes"
    return f"backbone: {chosen}, {why.get(judged, best)}"


def in_milliseconds(value: float | None) -> str:
    """Return a time in milliseconds, to two digits where it is short.

    >>> in_milliseconds(8.23), in_milliseconds(61.7)
    ('8.2', '62')
    """
    return "" if value is None else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _counts(network: TriedNetwork) -> bool:
    return network.value is not None and not network.left_out


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"
