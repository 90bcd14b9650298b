"""Files and names -> frozen input models. The only door through which YAML comes in.

A loaded Scenario stands by itself: its topology is read (``cluster.topology`` is a TopologySpec, with its
device as a DeviceSpec) and ``model.hf`` is an absolute path. Relative paths of a file start at that file's
directory, those of a command-line override at the working directory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from simulator import shipped
from simulator.device import DeviceSpec
from simulator.errors import ScenarioError
from simulator.file_tree import located
from simulator.library import AlphaBetaLibrary, CalibratedLibrary, NcclLibrary
from simulator.model_spec import MODEL_FORMS, HfModel, PresetModel
from simulator.origin import Origin
from simulator.overrides import Forms, apply_overrides
from simulator.preset import PresetSpec
from simulator.problems import Loc, Problem, nearest, show
from simulator.profiles import library_at, profile
from simulator.scaling import lacking, scaled
from simulator.scenario import Cluster, Scenario
from simulator.text_file import read_text
from simulator.topology import SPECS, TopologySpec
from simulator.yaml_source import Source, read, validate

_FORMS: Forms = {("model",): MODEL_FORMS}


def load_scenario(path_or_name: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario file, or the shipped scenario of that name, and apply ``key.path=value`` overrides.

    Raises ScenarioError listing every problem of the scenario, one line each (UnsupportedError when all of them
    are merely not in this version), or the problems of the topology file it names.
    """
    return scenario_of(apply_overrides(_scenario_source(os.fspath(path_or_name)), overrides, _FORMS))


def scenario_of(source: Source) -> Scenario:
    """The scenario in a document, with all that it names read; paths start at its directory. Raises as above."""
    try:
        scenario = validate(source, Scenario)
    except ScenarioError as error:
        more = _unknown_names(source)
        if not more:
            raise
        raise ScenarioError("\n".join([str(error), *more])) from None
    updates: dict[str, object] = {}
    errors: list[str] = []
    for key, resolve in _RESOLVE.items():
        try:
            updates[key] = resolve(scenario, source)
        except ScenarioError as error:
            errors.append(str(error))
    if errors:
        raise ScenarioError("\n".join(errors))
    return _with_scale(scenario.model_copy(update=updates), source).from_origin(Origin(source))


def _with_scale(scenario: Scenario, source: Source) -> Scenario:
    """The scenario with its own ``cluster.scale`` applied, which stays in it as a record."""
    factors = dict(scenario.cluster.scale.factors())
    problems = [Problem(loc=("cluster", "scale", name), message=lacking(scenario, name)) for name in factors]
    if any(problem.message for problem in problems):
        raise source.error(*(problem for problem in problems if problem.message))
    return scaled(scenario, factors)


def _unknown_names(source: Source) -> list[str]:
    """Names of shipped files that do not exist, to be told together with what else is wrong."""
    found = []
    names: tuple[tuple[Loc, Callable[[str], Path]], ...] = (
        (("cluster", "topology"), shipped.topology_file), (("model", "preset"), shipped.preset_file),
    )  # fmt: skip
    for (block, key), file in names:
        held = source.value.get(block)
        name = held.get(key) if isinstance(held, dict) else None
        if not isinstance(name, str) or (key == "topology" and is_path(name)):
            continue
        try:
            with _at(source, (block, key)):
                file(name)
        except ScenarioError as error:
            found.append(str(error))
    return found


def load_topology(ref: str, base_dir: Path | None = None) -> TopologySpec:
    """A shipped topology by name, or a file when ``ref`` holds a '/' or ends in .yaml or .yml.

    A relative path starts at ``base_dir`` (the working directory when None). The device is read as well.
    """
    if not is_path(ref):
        return _topology_from(read(shipped.topology_file(ref)))
    return _topology_from(read(located(ref, base_dir), also_known=shipped.names("topology")))


def load_device(name: str) -> DeviceSpec:
    """A shipped device profile. Raises ScenarioError with the nearest name when there is none."""
    return profile(shipped.device_file(name), DeviceSpec)


def load_library(ref: str, base_dir: Path | None = None) -> AlphaBetaLibrary | NcclLibrary:
    """A communication library: a shipped one by name, or a file when ``ref`` holds a '/' or ends in .yaml or .yml."""
    path = located(ref, base_dir) if is_path(ref) else shipped.library_file(ref)
    source, library = library_at(path, also_known=shipped.names("library") if is_path(ref) else ())
    return _corrected(library, source) if isinstance(library, CalibratedLibrary) else library


def _corrected(library: CalibratedLibrary, source: Source, loc: Loc = ()) -> NcclLibrary:
    """The base of the calibrated library at ``loc`` with its corrections."""
    loc = (*loc, "base")
    with _at(source, loc):
        base = load_library(library.base, _base(source, loc))
        if not isinstance(base, NcclLibrary):
            raise ScenarioError(f"'{library.base}' has no cost model to correct; such as nccl or rccl have one")
    named = {"name": library.name, "title": library.title or f"{base.name}, corrected by own runs"}
    return base.model_copy(update={**named, "corrections": library.corrections, "source": library.source,
                                   "calibrated_for": library.generation})  # fmt: skip


def with_library(topology: TopologySpec, library: AlphaBetaLibrary | NcclLibrary) -> TopologySpec:
    """``topology`` with that library. Raises ScenarioError for one that was calibrated on other GPUs."""
    meant = library.calibrated_for if isinstance(library, NcclLibrary) else None
    device = topology.device
    if meant is not None and isinstance(device, DeviceSpec) and device.generation != meant:
        raise ScenarioError(
            f"'{library.name}' was calibrated on {meant} GPUs; '{topology.name}' has "
            f"{device.generation or 'other'} ones, of which its factors say nothing"
        )
    fabric = getattr(getattr(topology, "network", None), "fabric", None)
    any_way = isinstance(library, NcclLibrary) or not library.fabrics or topology.kind in {"uniform", "explicit"}
    if isinstance(library, AlphaBetaLibrary) and not any_way and fabric not in library.fabrics:
        raise ScenarioError(
            f"'{library.name}' runs over {' or '.join(library.fabrics)}, through the hosts; the links of "
            f"'{topology.name}' are not its way. Accepted: topologies of such a network, or 'uniform'"
        )
    return topology.model_copy(update={"library": library})


def load_preset(name: str) -> PresetSpec:
    """A shipped model. Raises ScenarioError with the nearest name when there is none."""
    return profile(shipped.preset_file(name), PresetSpec)


def is_path(ref: str) -> bool:
    """Whether a topology reference is a path rather than the name of a shipped topology."""
    return "/" in ref or os.sep in ref or ref.endswith((".yaml", ".yml"))


def is_shipped(ref: str) -> bool:
    """Whether a scenario's reference is the name of a shipped one; a file of that name comes first."""
    return ref in shipped.names("scenario") and not Path(ref).is_file()


def scenario_text(path_or_name: str | os.PathLike[str]) -> str:
    """The text of a scenario file as it was written, or of the shipped one of that name. Raises ScenarioError."""
    ref = os.fspath(path_or_name)
    return read_text(shipped.scenario_file(ref) if is_shipped(ref) else Path(ref))


def _scenario_source(ref: str) -> Source:
    names = shipped.names("scenario")
    if is_shipped(ref):
        return read(shipped.scenario_file(ref))
    if not ref.strip():
        raise ScenarioError(f"expected a scenario file or one of: {', '.join(names)}")
    try:
        return read(ref, also_known=names)
    except ScenarioError as error:
        if is_path(ref) or Path(ref).exists():
            raise
        raise ScenarioError(f"{error}; shipped scenarios: {', '.join(names)}") from None


def _base(source: Source, loc: Loc) -> Path | None:
    return None if source.origin(loc) else source.directory


def _topology_from(source: Source) -> TopologySpec:
    kind = source.value.get("kind")
    if not isinstance(kind, str) or kind not in SPECS:
        accepted = f"accepted: {', '.join(SPECS)}"
        wrong = f"unknown kind {show(kind)}; {accepted}{nearest(str(kind), SPECS)}"
        message = wrong if "kind" in source.value else f"missing key; {accepted}"
        raise source.error(*source.problems, Problem(loc=("kind",), message=message))
    return _with_profiles(validate(source, SPECS[kind]), source, ())


def _with_profiles(topology: TopologySpec, source: Source, loc: Loc) -> TopologySpec:
    """The topology with its device and its library as models in place of their names."""
    found: dict[str, object] = {}
    if isinstance(topology.device, str):
        with _at(source, (*loc, "device")):
            path = shipped.device_file(topology.device)
        found["device"] = profile(path, DeviceSpec)
    if isinstance(topology.library, str):
        with _at(source, (*loc, "library")):
            found["library"] = load_library(topology.library, _base(source, loc))
    elif isinstance(topology.library, CalibratedLibrary):
        found["library"] = _corrected(topology.library, source, (*loc, "library"))
    made = topology.model_copy(update=found) if found else topology
    if isinstance(made.library, AlphaBetaLibrary | NcclLibrary):
        with _at(source, (*loc, "library")):
            return with_library(made, made.library)
    return made


@contextmanager
def _at(source: Source, loc: Loc) -> Iterator[None]:
    """What goes wrong inside is the fault of what stands at ``loc``."""
    try:
        yield
    except ScenarioError as error:
        raise source.error(Problem(loc=loc, message=str(error))) from None


def _resolved_cluster(scenario: Scenario, source: Source) -> Cluster:
    loc: Loc = ("cluster", "topology")
    ref = scenario.cluster.topology
    if isinstance(ref, TopologySpec):
        topology = _with_profiles(ref, source, loc)
    else:
        with _at(source, loc):
            path = located(ref, _base(source, loc)) if is_path(ref) else shipped.topology_file(ref)
            text = read(path, also_known=shipped.names("topology"))
        topology = _topology_from(text)
    library = scenario.cluster.library
    if isinstance(library, str):
        with _at(source, ("cluster", "library")):
            library = load_library(library, _base(source, ("cluster", "library")))
    elif isinstance(library, CalibratedLibrary):
        library = _corrected(library, source, ("cluster", "library"))
    if library is not None:
        with _at(source, ("cluster", "library")):
            topology = with_library(topology, library)
    return scenario.cluster.model_copy(update={"topology": topology, "library": None})


def _resolved_model(scenario: Scenario, source: Source) -> object:
    model = scenario.model
    if isinstance(model, PresetModel):
        with _at(source, ("model", "preset")):
            preset = load_preset(model.preset)
        if preset.config is not None and scenario.train and "seq_len" not in scenario.train.model_fields_set:
            raise source.error(Problem(loc=("train", "seq_len"), message="missing key: tokens in a sequence"))
    if not isinstance(model, HfModel):
        return model
    loc: Loc = ("model", "hf")
    path = located(model.hf, _base(source, loc))
    path = path / "config.json" if path.is_dir() else path
    with _at(source, loc):
        read_text(path)
    return HfModel(hf=str(path.resolve()))


_RESOLVE = {"cluster": _resolved_cluster, "model": _resolved_model}


def scenario_digest(scenario: Scenario) -> str:
    """SHA-256 (hex) of what a loaded scenario says, files it points to included; not of how it was written or of where
    the files are.
    """
    said = scenario.model_dump(mode="json")
    if isinstance(scenario.model, HfModel):
        said["model"] = {"hf": "config.json"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode())
    if isinstance(scenario.model, PresetModel):
        digest.update(shipped.preset_file(scenario.model.preset).read_bytes())
    if isinstance(scenario.model, HfModel):
        digest.update(Path(scenario.model.hf).read_bytes())
    return digest.hexdigest()
