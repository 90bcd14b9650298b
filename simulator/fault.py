"""What may be wrong with a cluster: slow or missing links. Input nouns; ``network.faults`` applies them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, model_validator

from simulator.fields import Frozen, Share, Text, errors_at

#: Ways to say where: exactly one of them.
PLACES = ("node", "part", "link")


class Fault(Frozen):
    """Links that are slow or gone. Where: all links of a ``node``, all links at a ``part``, or one ``link``.

    ``{node: 2, bandwidth: 50%}``, ``{node: 2, tier: nic, bandwidth: 50%}``, ``{part: node1.nic3, removed: true}``,
    ``{link: [node0.gpu0, node0.gpu1], removed: true}``. Both directions are hit; shares of several faults multiply.
    """

    node: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="number of a host, from 0: all links inside it and up to the switches"
    )
    part: Text | None = Field(default=None, description="name of a NIC or switch, such as node1.nic3: all links at it")
    link: Annotated[tuple[Text, Text], Field(strict=False)] | None = Field(
        default=None, description="one link by its two ends, such as [node0.gpu0, node0.gpu1]"
    )
    tier: Text | None = Field(
        default=None, description="only links of this tier, as 'simulator topology' names them, such as nic or nvlink"
    )
    bandwidth: Share | None = Field(default=None, description="share of its bandwidth that each link keeps, each way")
    removed: bool = Field(default=False, description="true: the links are not there at all")

    @model_validator(mode="wrap")
    @classmethod
    def _says_where_and_what(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Fault:
        """Checks across keys, reported together with the errors inside them."""
        problems = _problems(data) if isinstance(data, dict) else []
        try:
            fault: Fault = handler(data)
        except ValidationError as error:
            if not problems:
                raise
            raise errors_at("Fault", *problems, also=error) from None
        if problems:
            raise errors_at("Fault", *problems)
        return fault

    def __str__(self) -> str:
        where = {"node": f"node {self.node}", "part": f"'{self.part}'", "link": f"{list(self.link or ())}"}
        named = next(where[key] for key in PLACES if getattr(self, key) is not None)
        return named if self.tier is None else f"{named}, tier '{self.tier}'"

    def words(self) -> str:
        """Where and what, for a headline: ``node 2, tier 'nic' at 50%``."""
        return f"{self} removed" if self.removed else f"{self} at {(self.bandwidth or 1.0) * 100:g}%"


def _problems(data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    if any(key not in Fault.model_fields for key in data):
        return []  # misspelt, which is reported as an unknown key
    if not data:
        return [((), "is empty; say where (node, part or link) and what, such as {node: 2, bandwidth: 50%}")]
    problems: list[tuple[tuple[str | int, ...], str]] = []
    given = [key for key in PLACES if data.get(key) is not None]
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "says nowhere"
        problems.append(((), f"{found}; give exactly one of node, part, link"))
    if (data.get("bandwidth") is None) == (data.get("removed") in (None, False)):
        problems.append(((), "give either 'bandwidth' (the share that is left, such as 50%) or 'removed: true'"))
    if data.get("removed") is True and data.get("node") is not None and data.get("tier") is None:
        problems.append((("removed",), "a node is left out by naming the other nodes; with 'tier' only its links go"))
    return problems
