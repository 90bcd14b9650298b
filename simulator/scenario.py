"""The user's question as a frozen value: which cluster, which model, how parallel, how trained.

A scenario holds either ``model`` and ``train`` (a training step) or ``collective`` (one collective by
itself). Quantities are SI floats inside. Nothing here reads a file: ``load`` resolves names and paths.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from simulator.budget_spec import Cost, Goal
from simulator.errors import ScenarioError
from simulator.fault import Fault
from simulator.fields import (
    BytesOrZero,
    Count,
    Dollars,
    Frozen,
    Items,
    Share,
    ShareOrZero,
    Text,
    Time,
    errors_at,
)
from simulator.library import AnyLibrary
from simulator.model_spec import LayersModel, Model, PresetModel
from simulator.origin import Origin
from simulator.parallel_spec import Parallel
from simulator.problems import Loc, nearest
from simulator.ranks_spec import Host, Jitter, Straggler
from simulator.scale_spec import Scale
from simulator.topology import AnyTopology, TopologySpec
from simulator.train_spec import Train as Train

MAX_GPUS: Final = 1_000_000
Op = Literal[
    "broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_to_all", "send_recv"
]  # fmt: skip


def _whole_bytes(size_bytes: float) -> float:
    """Rounds away what a decimal prefix costs (``1.1 MB``); half a byte is refused."""
    if abs(size_bytes - round(size_bytes)) > 1e-6 * max(size_bytes, 1.0):
        raise ScenarioError("must be a whole number of bytes")
    return float(round(size_bytes))


class Cluster(Frozen):
    """The machines. What is left out stays as the topology file says."""

    topology: str | AnyTopology = Field(
        description="a shipped topology (see 'simulator topology'), a path to a YAML file, or a topology written here"
    )
    nodes: Count | None = Field(default=None, description="number of hosts used")
    gpus_per_node: Count | None = Field(default=None, description="GPUs used in each host")
    shape: Annotated[Items[Count], Field(min_length=1, max_length=3)] | None = Field(
        default=None, description="for a torus: its length along each axis, such as [4, 4, 4]"
    )
    faults: Items[Fault] = Field(
        default=(), description="slow or missing links: [{node: 2, bandwidth: 50%}, {link: [a, b], removed: true}]"
    )

    stragglers: Items[Straggler] = Field(
        default=(), description="ranks that compute slower: [{ranks: [3], speed: 80%}, {node: 2, speed: 90%}]"
    )
    jitter: Jitter | None = Field(
        default=None, description="compute times of ranks that differ by chance: {share: 3%, seed: 1}"
    )
    host: Host = Field(
        default=Host(), description="CPU thread that issues the work: {kernel_launch: 6 us, collective_launch: 35 us}"
    )
    library: str | AnyLibrary | None = Field(
        default=None,
        description="communication library: nccl, rccl, gloo, xla-tpu, textbook, a file, or a profile; the topology's "
        "own when left out",
    )
    scale: Scale = Field(
        default=Scale(), description="what if: inputs times a factor, such as {nic_bandwidth: 2, matmul_rate: 80%}"
    )

    @model_validator(mode="after")
    def _is_not_absurd(self) -> Cluster:
        total = (self.nodes or 1) * (self.gpus_per_node or 1)
        if total > MAX_GPUS:
            message = f"nodes x gpus_per_node is {total:,}; at most {MAX_GPUS:,} GPUs are accepted"
            raise errors_at("Cluster", (("nodes",), message))
        chips = 1
        for length in self.shape or ():
            chips *= length
        if chips > MAX_GPUS:
            message = f"holds {chips:,} chips; at most {MAX_GPUS:,} are accepted"
            raise errors_at("Cluster", (("shape",), message))
        if self.shape is not None and self.nodes is not None:
            raise errors_at("Cluster", (("nodes",), "follows from 'shape'; give one of the two"))
        return self

    @property
    def spec(self) -> TopologySpec:
        """The topology itself: ``load_scenario`` has put it in the place of its name."""
        assert isinstance(self.topology, TopologySpec), "the topology is a name: load_scenario reads it"
        return self.topology


class Limits(Frozen):
    """What makes the answer 'infeasible'."""

    exposed: ShareOrZero | None = Field(
        default=None, description="largest share of the step that exposed communication may take"
    )
    memory: Share = Field(
        default=1.0, description="share of the device memory that may be used", json_schema_extra={"default": "100%"}
    )
    time: Time | None = Field(default=None, description="longest time of the whole run, such as 30 days")
    cost: Dollars | None = Field(default=None, description="what the whole run may cost, such as $1.2M")


class Engine(Frozen):
    """How the simulation runs."""

    fidelity: Literal["auto", "coflow", "message"] = Field(
        default="auto", description="coflow: ranks folded into classes; message: every rank and every message"
    )


class Groups(Frozen):
    """Ranks in groups of equal size that all run the collective at the same time, on the network they share."""

    size: Count = Field(description="ranks of each group")
    by: Literal["block", "rail", "stride"] = Field(
        default="block",
        description="which ranks make a group: neighbours (block), those of one number in 'size' nodes (rail), or "
        "every n-th of all (stride)",
    )


class Collective(Frozen):
    """One collective operation by itself."""

    op: Op = Field(description="which collective")
    size: Annotated[BytesOrZero, AfterValidator(_whole_bytes)] = Field(
        description="bytes of the full buffer, counted as nccl-tests counts them"
    )
    algorithm: Text = Field(
        default="auto", description="name of the algorithm; 'auto' is what the library runs, else the fastest that fits"
    )
    ranks: Count | None = Field(default=None, description="how many GPUs take part; all that are chosen when left out")
    nodes: Count | Annotated[Items[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = Field(
        default=None, description="how many hosts take part, or which, in which order, such as [0, 1, 32, 33]"
    )
    gpus_per_node: Count | None = Field(default=None, description="how many GPUs of each host take part")
    groups: Groups | None = Field(
        default=None, description="the ranks in groups that run at the same time, such as {size: 4, by: rail}"
    )


class Scenario(Frozen):
    """A cluster, and either ``model`` with ``train`` (``parallel`` defaults to DDP) or a ``collective``."""

    cluster: Cluster = Field(description="the machines and the network between them")
    model: Model | None = Field(
        default=None, description="what is trained: {preset: NAME}, {hf: PATH}, {layers: [...]}, or sizes"
    )
    parallel: Parallel = Field(default=Parallel(), description="how training is spread over the GPUs")
    train: Train | None = Field(default=None, description="one optimizer step: {seq_len, micro_batch, ...}")
    goal: Goal | None = Field(default=None, description="what the whole run is for: {tokens: 15T, critical_batch: 4M}")
    cost: Cost | None = Field(
        default=None, description="what a GPU costs: {gpu_hour: $2.50/h, low: ..., high: ..., as_of: 2026-11-29}"
    )
    limits: Limits = Field(default=Limits(), description="when the answer counts as infeasible")
    engine: Engine = Field(default=Engine(), description="how the simulation runs")
    collective: Collective | None = Field(default=None, description="one collective instead of a training step")
    _origin: Origin = PrivateAttr(default_factory=Origin)

    def from_origin(self, origin: Origin) -> Scenario:
        """The same scenario, which knows where it was written; equal to this one."""
        copy = self.model_copy()
        copy._origin = origin
        return copy

    def describe(self, loc: Loc, message: str) -> str:
        """What is wrong with the key at ``loc``, found only after loading: with file and line where they are known."""
        return self._origin.describe(loc, message)

    def written(self, loc: Loc) -> object:
        """The value at the key as it was written; None where a default stands, or no document was."""
        return self._origin.written(loc)

    @model_validator(mode="wrap")
    @classmethod
    def _asks_one_question(cls, data: Any, handler: ModelWrapValidatorHandler[Scenario]) -> Scenario:
        """Checks across keys, reported together with the errors inside them."""
        problems = [*_question_problems(data), *_unanswerable_limits(data)] if isinstance(data, dict) else []
        try:
            scenario = handler(data)
        except ValidationError as error:
            if not problems:
                raise
            raise errors_at("Scenario", *problems, also=error) from None
        if problems:
            raise errors_at("Scenario", *problems)
        return scenario


def _question_problems(data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    given = {key for key in ("model", "parallel", "train") if data.get(key) is not None}
    if data.get("collective") is not None:
        message = "cannot stand beside 'collective': a scenario holds one collective, or a model and its training"
        refused: list[tuple[tuple[str | int, ...], str]] = [
            ((key,), message) for key in ("model", "parallel", "train") if key in given
        ]
        if data.get("limits") is not None:
            refused.append((("limits",), "judge a training step; this scenario holds a single collective"))
        return refused
    if not given:
        if any(key not in Scenario.model_fields and nearest(key, ("collective", "model", "train")) for key in data):
            return []  # misspelt, which is reported as an unknown key
        return [((), "needs either 'model' and 'train' (a training step) or 'collective'")]
    problems: list[tuple[tuple[str | int, ...], str]] = [((key,), "") for key in ("model", "train") if key not in given]
    train, model = data.get("train"), data.get("model")
    without_lengths = isinstance(model, LayersModel | PresetModel) or (
        isinstance(model, dict) and any(form in model for form in ("layers", "preset"))
    )  # a preset may be a vision model; load asks for the length when it is not
    has_train = isinstance(train, Train | dict)
    train_keys = train.model_fields_set if isinstance(train, Train) else train
    if has_train and "model" in given and not without_lengths and "seq_len" not in (train_keys or ()):
        problems.append((("train", "seq_len"), ""))
    return problems


def _unanswerable_limits(data: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Limits on the whole run need to know how long it is, and what an hour costs."""
    limits, goal = data.get("limits"), data.get("goal")
    if not isinstance(limits, dict):
        return []
    tokens = isinstance(goal, Goal) or (isinstance(goal, dict) and goal.get("tokens") is not None)
    lacking = {"time": [] if tokens else ["goal.tokens"], "cost": [] if tokens else ["goal.tokens"]}
    lacking["cost"] += [] if data.get("cost") is not None else ["cost"]
    return [
        (("limits", key), f"needs {' and '.join(names)} in the scenario")
        for key, names in lacking.items() if names and limits.get(key) is not None
    ]  # fmt: skip
