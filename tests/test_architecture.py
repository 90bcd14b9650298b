"""The blocks of the package, bottom first, and the imports allowed between them: anything else fails here.

To add a module, put its name into a block, or add a block where it belongs; to add an arrow, ask first whether the
thing imported should stand lower. Nouns cross borders, verbs do not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "simulator"
MOST_LINES_OF_A_MODULE = 300
MOST_LINES_OF_A_FUNCTION = 60


class Block:
    """Modules (a folder's name stands for all in it), blocks that they may import besides their own, third parties."""

    def __init__(self, modules: str, blocks: str = "", packages: str = "") -> None:
        self.modules, self.blocks, self.packages = modules.split(), blocks.split(), packages.split()


#: Bottom first. A block imports only from blocks above it in this list.
BLOCKS = {
    # words and units
    "errors": Block("errors"),
    "units": Block("units", "errors"),
    "problems": Block("problems spellings"),
    "fields": Block("fields", "errors units", "pydantic pydantic_core"),
    "spans": Block("spans_of_values", "errors units"),
    # strict text -> plain values
    "yaml": Block(
        "text_file yaml_scalars yaml_document validation_errors yaml_source overrides", "errors problems",
        "pydantic yaml",
    ),
    # input nouns: frozen, no I/O
    "machines": Block(
        "device fault library_fits library_rules library range_spec topology", "errors problems fields", "pydantic"
    ),
    "question": Block(
        "budget_spec preset model_spec origin model_parallel_spec parallel_spec ranks_spec scale_spec train_spec "
        "scenario", "errors units fields problems machines", "pydantic",
    ),
    "schema": Block("schema", "machines question", "pydantic"),
    # what keys mean: of JSON outputs (a file of its own) and of scenarios (their schema)
    "explanations": Block("explanations", "errors problems fields yaml schema"),
    # one number of a scenario times a factor -> scenario
    "scaling": Block("scaling", "machines question"),
    # files -> input nouns
    "load": Block(
        "shipped file_tree profiles load", "errors problems yaml machines question scaling", "pydantic"
    ),
    # nouns between the verbs: they know no input and no engine
    "nouns": Block("schedule mesh plan kin rank_classes timeline", "errors", "numpy"),
    # topology -> graph; no time, no collectives
    "network": Block("network", "errors problems machines", "networkx numpy"),
    # the flags of the command line about places -> networks with ranks placed on them
    "placing": Block("placing", "errors problems units spans machines network"),
    # integers -> schedule; no network, no YAML, no clock
    "collectives": Block("collectives", "errors problems nouns", "numpy"),
    # integers -> orders of a pipeline, and those played without communication; no network, no plan
    "pipelines": Block("pipelines", "errors problems"),
    # real programs on virtual hosts with shaped links, and the network that stands for them
    "lab": Block("lab", "errors problems machines question nouns network pipelines"),
    # published measurements as rows, and how far predictions are from them; no engine
    "measurements": Block("measurements", "yaml collectives", "numpy"),
    # a user's own nccl-tests log -> rows -> fitted constants; no engine
    "calibration": Block("calibration", "errors collectives measurements", "numpy"),
    # a group of ranks -> what its communication library runs and how long that takes; no schedule
    "tuning": Block("tuning", "machines network", "numpy"),
    # (plan or schedule, network) -> times; the only importer of simpy
    "engine": Block("engine", "errors machines nouns network collectives tuning", "numpy simpy"),
    # a model and its device -> operations, each with times, bytes and kernels; no network, no engine
    "training": Block("training", "errors problems machines question nouns load yaml", "numpy"),
    # a model and a strategy -> tasks and buffers, as a framework issues them; no network, no engine
    "strategies": Block("strategies", "errors problems question nouns pipelines training"),
    # a planned step and a timed collective, as nouns for the report
    "results": Block("job rows", "machines question nouns training strategies"),
    # scenario -> plan
    "planner": Block(
        "rank_looks host_costs planner",
        "errors problems machines question nouns network collectives tuning training strategies results",
        "numpy",
    ),
    # collectives over sizes and algorithms -> rows
    "timing": Block("collective_rows", "errors machines nouns network collectives tuning engine results", "numpy"),
    # measured rows -> predictions
    "validation": Block("validation", "load network collectives timing measurements"),
    # a user's fits -> what a library's shipped profile must be multiplied by
    "correcting": Block(
        "corrections", "errors machines load network collectives calibration timing", "numpy"
    ),
    # values -> numbers, text, JSON, pictures
    "report": Block(
        "report", "errors units problems machines question nouns network collectives training strategies results"
        " measurements pipelines",
        "numpy rich matplotlib jinja2 plotly",
    ),
    # the five calls in one place
    "answer": Block(
        "answer", "errors machines question nouns network collectives engine results planner timing report"
    ),
    # a real run in the lab beside its simulation
    "comparison": Block(
        "lab_compare lab_answer lab_text",
        "errors units machines question load nouns network lab collectives engine report answer", "numpy rich",
    ),
    # steps with inputs at other values: ranges, and which input moves the result most
    "uncertainty": Block(
        "uncertainty", "errors units machines question scaling network results report answer", "rich matplotlib"
    ),
    # files of other programs -> scenarios
    "importing": Block(
        "importing", "errors problems yaml machines question load network pipelines training planner"
    ),
    # changes of a scenario, simulated and ranked
    "checking": Block(
        "checking",
        "errors units problems question scaling network training strategies results report answer", "rich",
    ),
    "sweeps": Block(
        "sweeps", "errors problems yaml machines question load results report answer", "distributed"
    ),
    # a step, judged, with its cures and ranges -> a page
    "page": Block("step_page", "units load report answer uncertainty checking", "rich"),
    # the command line: what commands do, and, without importing that, what they accept
    "commands": Block(
        "commands",
        "errors problems units spans yaml machines question schema explanations load network placing"
        " collectives pipelines engine results timing measurements calibration validation correcting report answer"
        " uncertainty checking comparison sweeps page importing",
        "click rich",
    ),
    "cli": Block("cli __main__", "errors", "click"),
}  # fmt: skip

#: Modules that single packages are kept to, beyond their block.
ONLY_IN = {
    "yaml": {"yaml_document"},
    "matplotlib": {
        "report.picture_file",
        "report.pipeline_plot",
        "report.pictures.planes",
        "report.pictures.sheet",
        "report.rows_plot",
        "report.swimlanes_plot",
        "uncertainty.tornado_plot",
    },
    "jinja2": {"report.html.page"},
    "plotly": {"report.html.page"},
    "networkx": {"network.graph", "network.tiers"},
    "distributed": {"sweeps.cluster"},
}
#: Standard modules that would make a result depend on more than its input, and who may use them.
IMPURE = {
    "time": {"commands", "lab", "sweeps"}, "datetime": set(), "secrets": set(), "uuid": set(), "socket": set(),
    "random": {"sweeps"}, "subprocess": {"lab"}, "threading": {"sweeps"}, "multiprocessing": {"sweeps"},
    "concurrent": {"sweeps"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file. ``name`` is without the leading ``simulator.``; ``own`` and ``foreign`` are what it imports."""

    name: str
    path: Path
    tree: ast.Module
    own: frozenset[str]
    foreign: frozenset[str]


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node: ast.AST, names: frozenset[str]) -> Iterator[str]:
    """Dotted names that one statement imports; of ``from package import module`` the module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "relative import"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner.removeprefix("simulator.") in names else str(node.module)


@cache
def modules() -> dict[str, Module]:
    paths = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: _module(name, path, frozenset(paths)) for name, path in paths.items() if name}


def _module(name: str, path: Path, names: frozenset[str]) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {dotted for node in ast.walk(tree) for dotted in _imported(node, names)}
    own = {dotted.removeprefix("simulator.") for dotted in found if dotted.startswith("simulator.")}
    foreign = {dotted.partition(".")[0] for dotted in found} - {"simulator"}
    return Module(name, path, tree, frozenset(own), frozenset(foreign))


@cache
def block_of(name: str) -> str | None:
    homes = [
        block for block, content in BLOCKS.items()
        if any(name == module or name.startswith(f"{module}.") for module in content.modules)
    ]  # fmt: skip
    assert len(homes) < 2, f"{name} is in {homes}"
    return homes[0] if homes else None


NAMES = sorted(modules())


def homed(block: str) -> list[str]:
    return [name for name in NAMES if block_of(name) == block]


def test_every_module_is_in_a_block() -> None:
    homeless = [name for name in NAMES if block_of(name) is None]
    assert not homeless, "add them to BLOCKS, as low as they can be"


@pytest.mark.parametrize("block", BLOCKS)
def test_modules_import_only_from_the_blocks_that_their_own_may_see(block: str) -> None:
    allowed = {block, *BLOCKS[block].blocks}
    for name in homed(block):
        wrong = {other: home for other in modules()[name].own if (home := block_of(other)) not in allowed}
        assert not wrong, f"{name} ({block}) imports {wrong}; allowed: {sorted(allowed)}"


@pytest.mark.parametrize("block", BLOCKS)
def test_modules_use_only_the_packages_of_their_block(block: str) -> None:
    third_party = {package for other in BLOCKS.values() for package in other.packages}
    for name in homed(block):
        for package in modules()[name].foreign & third_party:
            assert package in BLOCKS[block].packages, f"{package} in {name} ({block})"
            assert name in ONLY_IN.get(package, {name}), f"{package} belongs to {ONLY_IN[package]}, not to {name}"
        for package in modules()[name].foreign & set(IMPURE):
            assert block in IMPURE[package], f"{package} in {name}: results depend on nothing but the input"


def test_every_arrow_between_blocks_points_down() -> None:
    order = list(BLOCKS)
    up = [
        (block, other) for block in order for other in BLOCKS[block].blocks if order.index(other) >= order.index(block)
    ]
    assert not up


def test_no_module_imports_itself_through_others() -> None:
    TopologicalSorter({name: module.own for name, module in modules().items()}).prepare()  # raises CycleError


def test_simpy_stays_in_the_engine() -> None:
    assert {block_of(name) for name, module in modules().items() if "simpy" in module.foreign} == {"engine"}


@pytest.mark.parametrize(
    ("block", "never"),
    [
        ("collectives", {"network", "machines", "question", "load", "yaml", "engine"}),
        ("network", {"question", "collectives", "engine", "nouns", "training"}),
        ("engine", {"question", "load", "yaml", "training", "report"}),
        ("training", {"network", "engine", "report"}),
        ("report", {"engine", "planner", "timing"}),
    ],
)
def test_what_the_design_keeps_apart_stays_apart_through_others_too(block: str, never: set[str]) -> None:
    for name in NAMES:
        if block_of(name) == block:
            assert not {other for other in _reached(name) if block_of(other) in never}, name


def _reached(name: str) -> set[str]:
    """Modules that importing ``name`` imports, directly and through others."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        more = modules()[todo.pop()].own - seen
        seen |= more
        todo += more
    return seen


def test_own_modules_are_imported_at_the_top() -> None:
    inside = [
        (name, dotted)
        for name, module in modules().items()
        if any(isinstance(n, ast.Import | ast.ImportFrom) and n.col_offset for n in ast.walk(module.tree))
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        for dotted in _imported(node, frozenset(modules()))
        if dotted.startswith("simulator")
    ]
    assert not inside


def test_only_the_door_to_the_commands_imports_by_name() -> None:
    by_name = {
        name
        for name, module in modules().items()
        if "importlib" in module.foreign or "__import__" in ast.dump(module.tree)
    }
    assert by_name == {"cli.implementation"}


def test_every_command_has_a_module_for_what_it_accepts_and_one_for_what_it_does() -> None:
    accepts = {name.removeprefix("cli.") for name in NAMES if name.startswith("cli.")} - {"implementation"}
    assert accepts == {name.removeprefix("commands.") for name in NAMES if name.startswith("commands.")}


def test_modules_and_functions_are_short_enough_to_read() -> None:
    lines = {name: len(module.path.read_text(encoding="utf-8").splitlines()) for name, module in modules().items()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_MODULE}
    long = {
        f"{name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, module in modules().items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    }
    assert not long


def test_everything_public_has_a_docstring() -> None:
    for name, module in modules().items():
        tree = module.tree
        assert ast.get_docstring(tree), f"simulator.{name} says nothing about itself"
        nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
        silent = [node.name for node in nodes if not ast.get_docstring(node)]
        assert not silent, f"simulator.{name}"


def test_no_catch_all_modules() -> None:
    names = {part for name in NAMES for part in name.split(".")}
    assert not names & {"utils", "util", "common", "base", "core", "types", "helpers", "misc"}


def test_every_path_that_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:simulator|tests|scenarios|topologies|schemas)/[\w./-]*\w", text))
    missing = sorted(path for path in named if not (ROOT / path).exists() and "NAME" not in path)
    assert not missing
