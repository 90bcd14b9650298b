"""Reference pages from the code: each function returns Markdown, and ``fill_in`` puts it where a page asks for it.

A page asks with a line ``<!-- generated: NAME -->``, NAME being one of GENERATED. Nothing is written to disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from simulator import shipped
from simulator.cli import COMMANDS
from simulator.device import DeviceSpec
from simulator.explanations.outputs import outputs
from simulator.explanations.scenario_keys import FILES, ScenarioKey, accepts, scenario_keys
from simulator.load import load_device, load_library, load_preset, load_topology
from simulator.network.builders import build_network
from simulator.network.tiers import Tier, bisection_bytes_per_s, peak_flop_per_s, tiers
from simulator.parallel_spec import COMMON, KEYS
from simulator.report.topology_svg import plural
from simulator.report.words import strategy_words
from simulator.schema import SCHEMAS
from simulator.topology import TopologySpec
from simulator.units import format_bandwidth, format_gib, format_time

MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
#: An anchor as GitHub needs it; Sphinx wants to know of it.
ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)


# ---- Markdown --------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Plain text that Markdown prints as it is, on one line; what stands in double backticks becomes code."""
    parts = re.split(r"(``.+?``)", " ".join(text.split()))
    return "".join(part if part.startswith("``") else re.sub(r"([\\`*_<>|\[\]{}$#~])", r"\\\1", part) for part in parts)


def code(text: str) -> str:
    """Text as code, also in a table; '' stays ''."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; cells are Markdown already. ``custom.css`` gives it the look of a list of keys."""
    held = list(rows)
    if held:
        yield from (":::{container} keys", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}")
        yield from (f"| {' | '.join(row)} |" for row in held)
        yield from (":::", "")


# ---- scenarios and other files ---------------------------------------------------------------------------------------


def scenario_page() -> str:
    """Every key of a scenario, block by block."""
    lines: list[str] = []
    for block in [key for key in scenario_keys() if "." not in key.key]:
        below = [key for key in scenario_keys() if key.key.startswith(f"{block.key}.")]
        lines += [f"## {block.key}", "", f"{_sentence(block.means)}", ""]
        lines += table(("key", "accepts", "when left out", "meaning"), [_scenario_row(key) for key in below])
    return "\n".join(lines)


def _scenario_row(key: ScenarioKey) -> tuple[str, ...]:
    file = f" ({FILES[key.key]} file: see [files](files.md))" if key.key in FILES else ""
    default = code(key.default) if key.default else "must be given" if key.required else ""
    return code(key.key), escaped(key.accepts), default, escaped(key.means) + file


def _sentence(text: str) -> str:
    return f"{escaped(text[:1].upper() + text[1:])}." if text else ""


def files_page() -> str:
    """Every block and key of topology, device, library and preset files, from their JSON Schemas."""
    lines: list[str] = []
    for kind in ("topology", "device", "library", "preset"):
        schema = SCHEMAS[kind]()
        known: Mapping[str, Any] = schema.get("definitions", {})
        lines += [f"## {kind} file", "", f"`simulator schema {kind}` prints this as JSON Schema.", ""]
        blocks = {name: block for name, block in known.items() if "properties" in block}
        if kind == "topology":  # blocks of device and library files have sections of their own
            blocks = {name: block for name, block in blocks.items() if name not in _others()}
        if "properties" in schema:
            blocks = {schema.get("title", kind): schema, **blocks}
        for name, block in blocks.items():
            lines += _block(name, block, known)
    return "\n".join(lines)


def _others() -> set[str]:
    return {name for kind in ("device", "library") for name in SCHEMAS[kind]().get("definitions", {})} | {"DeviceSpec"}


def _block(name: str, block: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    properties = block["properties"]
    kind = next((properties[key]["const"] for key in ("kind", "model") if "const" in properties.get(key, {})), None)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Spec")).lower().removeprefix("clustersim ")
    yield from (f"### {words}" + (f" (`{kind}`)" if kind else ""), "")
    yield from (_docstring(block.get("description", "")), "")
    rows = [
        (
            code(key), escaped(accepts(held, known)),
            "must be given" if key in block.get("required", ()) else code(_default(held)),
            escaped(held.get("description", "")),
        )
        for key, held in properties.items()
    ]  # fmt: skip
    head = ("key", "accepts", "when left out", "meaning")
    width = len(head) if any(row[-1] for row in rows) else len(head) - 1  # else the paragraph above says it
    yield from table(head[:width], [row[:width] for row in rows])


def _default(held: Mapping[str, Any]) -> str:
    value = held.get("default")
    if value in (None, [], "") or isinstance(value, dict):  # a block is told by its own keys
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _docstring(text: str) -> str:
    """The first paragraphs of a docstring, each on one line."""
    return "\n\n".join(escaped(paragraph) for paragraph in text.split("\n\n"))


# ---- outputs and commands --------------------------------------------------------------------------------------------


def outputs_page() -> str:
    """Every key of every JSON output: the registry that ``simulator explain`` prints."""
    lines: list[str] = []
    for output in outputs():
        lines += [f"## {output.name}", "", f"{code(output.command)}: {escaped(output.title)}.", ""]
        rows = []
        for one in output.keys:
            how = f". *From*: {escaped(one.how)}" if one.how else ""
            shown = f". *In the text*: {escaped(one.shown)}" if one.shown else ""
            rows.append((code(one.key), escaped(one.unit), f"{escaped(one.means)}{how}{shown}"))
        lines += table(("key", "unit", "meaning"), rows)
    return "\n".join(lines)


def commands_page() -> str:
    """Every command with its options, from click."""
    lines = [*table(("command", "what it does"), [_command_row(name) for name in COMMANDS])]
    for name, command in COMMANDS.items():
        context = click.Context(command, info_name=f"simulator {name}")
        usage = " ".join([f"simulator {name}", *command.collect_usage_pieces(context)])
        lines += [f"## {name}", "", "```text", usage, "```", ""]
        lines += [*_help(command.help or ""), ""]
        records = [parameter.get_help_record(context) for parameter in command.params]
        options = [record for record in records if record is not None]
        lines += table(("option", "meaning"), [(code(option), escaped(text)) for option, text in options if text])
    return "\n".join(lines)


def _help(text: str) -> Iterator[str]:
    """Paragraphs of a help text; click marks those whose lines must stay as they are by a backspace."""
    for paragraph in text.split("\n\n"):
        yield from ("```text", paragraph.lstrip("\b\n"), "```") if paragraph.startswith("\b") else (escaped(paragraph),)
        yield ""


def _command_row(name: str) -> tuple[str, str]:
    return f"[`{name}`](#{name})", escaped(COMMANDS[name].get_short_help_str(200))


# ---- what is shipped -------------------------------------------------------------------------------------------------


def topologies_page() -> str:
    """Every shipped topology: its links from the GPU outwards, each with its source."""
    lines: list[str] = []
    for name in shipped.names("topology"):
        lines += _topology(load_topology(name))
    return "\n".join(lines)


def _topology(spec: TopologySpec) -> Iterator[str]:
    network = build_network(spec)
    device = spec.device if isinstance(spec.device, DeviceSpec) else None
    yield from (f"## {spec.name}", "", f"{escaped(spec.title)}.", "")
    facts = [
        f"kind `{spec.kind}`", f"device {code(device.name) if device else 'none'}",
        f"library `{network.library.name}`",
        f"as shipped {plural(network.num_nodes, 'node')}, {plural(network.num_gpus, 'GPU')}",
        f"bisection {format_bandwidth(bisection_bytes_per_s(network))}",
    ]  # fmt: skip
    yield from (", ".join(facts) + ".", "")
    yield from table(
        ("link", "data sheet", "usable", "latency", "source"), [_tier(tier) for tier in tiers(network, device)]
    )
    if spec.notes:
        yield from (f"{escaped(spec.notes)}.", "")


def _tier(tier: Tier) -> tuple[str, ...]:
    return (
        escaped(tier.title), format_bandwidth(tier.nominal_bytes_per_s), format_bandwidth(tier.usable_bytes_per_s),
        format_time(tier.latency_s) if tier.latency_s else "", escaped(tier.source),
    )  # fmt: skip


def devices_page() -> str:
    """Every shipped device: its rates and memory, and where each number comes from."""
    devices = [load_device(name) for name in shipped.names("device")]
    head = ("device", "what it is", "peak (bf16, dense)", "memory", "memory bandwidth")
    lines = [*table(head, [_device(device) for device in devices])]
    lines += ["## Sources", ""]
    for device in devices:
        lines += [f"### {device.name}", ""]
        lines += [f"- {code(path)}: {escaped(text)}" for path, text in _sources(device.model_dump())]
        lines.append("")
    return "\n".join(lines)


def _device(device: DeviceSpec) -> tuple[str, ...]:
    peak = peak_flop_per_s(device)
    return (
        code(device.name), escaped(device.title), f"{peak / 1e12:,.4g} TFLOP/s" if peak else "",
        format_gib(device.memory), format_bandwidth(device.memory_bandwidth),
    )  # fmt: skip


def _sources(block: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _sources(value, f"{path}{key}.")
        elif key.endswith("source") and isinstance(value, str):
            yield f"{path}{key}", value


def models_page() -> str:
    """Every shipped model with its number of parameters and its source."""
    rows = []
    for name in shipped.names("preset"):
        preset = load_preset(name)
        rows.append((code(name), escaped(preset.title), f"{preset.parameters:,}", escaped(preset.source)))
    return "\n".join(table(("preset", "model", "parameters", "source"), rows))


def libraries_page() -> str:
    """Every shipped communication library."""
    rows = []
    for name in shipped.names("library"):
        library = load_library(name)
        rows.append((code(name), escaped(library.title), escaped(library.source)))
    return "\n".join(table(("library", "what it is", "source"), rows))


def strategies_page() -> str:
    """Every strategy and implementation, with the keys of ``parallel`` that it reads."""
    rows = []
    for (strategy, implementation), keys in KEYS.items():
        read = ", ".join(code(key) for key in keys.split()) or "none of its own"
        rows.append((code(strategy), code(implementation), escaped(strategy_words(strategy, implementation)), read))
    every = ", ".join(code(key) for key in COMMON)
    head = ("strategy", "implementation", "in words", "keys of its own")
    return "\n".join([*table(head, rows), f"All read {every}; the first implementation of a strategy is its default."])


def scenarios_page() -> str:
    """Every shipped scenario with the comment at its top."""
    rows = []
    for name in shipped.names("scenario"):
        lines = shipped.scenario_file(name).read_text(encoding="utf-8").splitlines()
        comment: list[str] = []
        for line in lines[1:]:
            if not line.startswith("#"):
                break
            comment.append(line.lstrip("# "))
        rows.append((code(name), escaped(" ".join(comment))))
    return "\n".join(table(("scenario", "what it shows"), rows))


GENERATED: Mapping[str, Callable[[], str]] = {
    "scenario": scenario_page,
    "files": files_page,
    "outputs": outputs_page,
    "commands": commands_page,
    "topologies": topologies_page,
    "devices": devices_page,
    "models": models_page,
    "libraries": libraries_page,
    "strategies": strategies_page,
    "scenarios": scenarios_page,
}


# ---- Sphinx ----------------------------------------------------------------------------------------------------------


def fill_in(app: object, docname: str, source: list[str]) -> None:
    """Sphinx's ``source-read``: puts what is generated in the place of its line, and makes anchors known."""
    filled = MARK.sub(lambda match: GENERATED[match[1]](), source[0])
    source[0] = ANCHOR.sub(r"(\1)=", filled)


def pages_with_generated_parts(app: Any, env: Any, added: object, changed: object, removed: object) -> list[str]:
    """Sphinx's ``env-get-outdated``: pages whose text depends on the code are read anew each time."""
    found = []
    for name in env.found_docs:
        path = Path(env.doc2path(name))
        if path.suffix == ".md" and MARK.search(path.read_text(encoding="utf-8")):
            found.append(name)
    return found
