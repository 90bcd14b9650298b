"""The page in a real browser: it loads alone, shows what it is hovered for, zooms, and fits a desk and a phone.

Needs playwright (the extra ``browser``) and an installed Chromium; skipped with the reason where one is missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import simulator

from simulator.units import format_gib, format_percent, format_time

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e '.[browser]'"
)

pytestmark = pytest.mark.slow
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WIDTHS = (1280, 390)
HOSTILE = "</script><script>document.title='taken'</script><b>"
#: Elements that reach beyond the screen, but for those inside a box that scrolls by itself.
WIDER = """width => Array.from(document.querySelectorAll('body *'))
    .filter(e => e.getBoundingClientRect().right > width + 1 && !e.closest('.scroll, pre, .skip, svg'))
    .map(e => e.tagName + '.' + e.className)"""
#: Name of the page -> what wrote it. The largest: 4,096 GPUs, 80 layers.
PAGES = {
    "fsdp": ("run", "fsdp-llama-8b-128xh100"),
    "classes": ("run", "fsdp-straggler-32xh100"),
    "measured": ("run", "measured-layers-400mbit"),
    "mended": ("check", "llama-8b-does-not-fit"),
    "large": (
        "run", "fsdp-llama-8b-128xh100", "model={preset: llama-3-70b}", "cluster.nodes=512", "train.recompute=full",
    ),
    "busy": ("run", "zero3-deepspeed-llama-8b-16xa100"),
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Each page, and what the same command prints as JSON."""
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, command in PAGES.items():
        result = simulator(*command, "--html", str(folder / f"{name}.html"), "--json")
        assert result.code in (0, 1), result.err
        found[name] = (folder / f"{name}.html", json.loads(result.out))
    return found


class Opened:
    """A page that is loaded and drawn, with what went over the console and the network meanwhile."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, **more: Any) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, **more)
        self.page.set_default_timeout(60_000)
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]", state="attached")

    def range(self) -> tuple[float, float]:
        low, high = self.page.evaluate("document.getElementById('chart-lanes').layout.xaxis.range")
        return float(low), float(high)

    def titles(self) -> dict[str, str]:
        found = self.page.query_selector_all("#charts section")
        return {s.get_attribute("id"): s.query_selector("h2").inner_text().replace("\xa0", " ") for s in found}


@pytest.mark.parametrize("name", PAGES)
def test_page_opens_without_a_message_or_a_request(name: str, browser: Any, pages: Any) -> None:
    opened = Opened(browser, pages[name][0])
    assert opened.messages == []
    assert [url for url in opened.requests if url != pages[name][0].as_uri()] == []
    told = pages[name][1]
    word = "Not feasible" if not told["feasible"] else "Feasible" if told["verdicts"] else "No limit to judge by"
    assert opened.page.title().startswith(f"{word}: ")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_screen(name: str, width: int, browser: Any, pages: Any) -> None:
    opened = Opened(browser, pages[name][0], width)
    for details in opened.page.query_selector_all("details"):
        details.evaluate("element => { element.open = true; }")
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    wide = opened.page.evaluate(WIDER, width)
    assert wide == []


@pytest.mark.parametrize("name", ["fsdp", "classes", "mended"])
def test_all_charts_are_drawn_with_bars_and_axes(name: str, browser: Any, pages: Any) -> None:
    opened = Opened(browser, pages[name][0])
    for key in ("breakdown", "lanes", "exposed", "memory", "links", "roofline"):
        chart = opened.page.query_selector(f"#chart-{key}")
        assert chart.query_selector(".main-svg"), key
        assert chart.query_selector(".xtitle"), f"{key}: the axis says what it counts"
        assert chart.get_attribute("aria-label").replace("\xa0", " ") == opened.titles()[key]
    assert len(opened.page.query_selector_all("#chart-lanes .point")) > 100


def test_titles_say_the_numbers_of_the_json(browser: Any, pages: Any) -> None:
    for name in ("fsdp", "classes", "measured", "large"):
        path, told = pages[name]
        titles = Opened(browser, path).titles()
        step, parts = format_time(told["step_time_s"]), told["breakdown_s"]
        working = (parts["compute"] + parts["optimizer"]) / told["step_time_s"]
        assert titles["breakdown"].startswith(f"{format_percent(working)} of the {step} of a step is compute")
        assert titles["lanes"].startswith(f"A step takes {step}; compute covers ")
        hidden = format_percent(told["comm_hidden_s"] / told["comm_total_s"])
        assert titles["exposed"].startswith(
            f"{hidden} of {format_time(told['comm_total_s'])} of communication is hidden"
        )
        assert format_time(parts["exposed_comm"]) in titles["exposed"]
        assert format_gib(told["memory"]["peak_bytes"]) in titles["memory"]
        assert format_percent(told["links"][0]["utilization"]) in titles["links"]


def test_a_failing_check_begins_with_the_cure_that_it_lists_first(browser: Any, pages: Any) -> None:
    path, told = pages["mended"]
    (failing,) = (verdict for verdict in told["verdicts"] if not verdict["ok"])
    page = Opened(browser, path).page
    said = page.inner_text(".mend").replace("\xa0", " ")
    assert said.startswith(f"Mended by {' '.join(failing['try'][0]['set'])} ")
    assert f"takes {format_time(failing['try'][0]['step_time_s'])}" in said
    assert failing["value"] in page.inner_text("h1").replace("\xa0", " ")
    assert page.inner_text("#costs tbody tr:first-child th") == " ".join(failing["try"][0]["set"])
    assert page.query_selector("#ranges tbody tr"), "the profiles state ranges"


def hovered(opened: Opened, chart: str, selector: str) -> str:
    opened.page.query_selector(f"#chart-{chart}").scroll_into_view_if_needed()
    box = opened.page.query_selector(f"#chart-{chart} {selector}").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2)
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.page.wait_for_selector(f"#chart-{chart} .hoverlayer .hovertext", state="attached")
    return str(opened.page.text_content(f"#chart-{chart} .hoverlayer"))


def test_hovering_tells_name_times_and_bytes(browser: Any, pages: Any) -> None:
    opened = Opened(browser, pages["measured"][0])
    said = hovered(opened, "lanes", ".trace:nth-of-type(3) .point path")
    assert "all-reduce of gradients layer" in said
    assert "from " in said
    assert "message of 12.0 MB" in said or "message of 8.00 MB" in said
    assert "exposed: " in hovered(opened, "exposed", ".point path")
    assert "of the step" in hovered(opened, "breakdown", ".point path")


def test_buttons_and_dragging_zoom_and_the_whole_step_comes_back(browser: Any, pages: Any) -> None:
    opened = Opened(browser, pages["fsdp"][0])
    whole, press = opened.range(), "#lanes .buttons button"
    opened.page.click(f"{press}:nth-of-type(2)")
    start, end = opened.range()
    assert whole[0] < start < end < whole[1]
    assert opened.page.get_attribute(f"{press}:nth-of-type(2)", "aria-pressed") == "true"
    opened.page.click(f"{press}:has-text('+')")
    assert opened.range()[1] - opened.range()[0] == pytest.approx((end - start) / 2)
    opened.page.click(f"{press}:first-of-type")
    assert opened.range() == pytest.approx(whole)
    area = opened.page.query_selector("#chart-lanes .nsewdrag").bounding_box()
    opened.page.mouse.move(area["x"] + 0.3 * area["width"], area["y"] + 20)
    opened.page.mouse.down()
    opened.page.mouse.move(area["x"] + 0.5 * area["width"], area["y"] + 20, steps=5)
    opened.page.mouse.up()
    opened.page.wait_for_function("document.getElementById('chart-lanes').layout.xaxis.range[0] > 0")
    low, high = opened.range()
    assert (low, high) == pytest.approx((0.3 * whole[1], 0.5 * whole[1]), rel=0.03)


def test_the_keyboard_reaches_the_zoom_and_the_tables(browser: Any, pages: Any) -> None:
    opened = Opened(browser, pages["fsdp"][0])
    whole = opened.range()
    opened.page.focus("#lanes .buttons button:nth-of-type(3)")
    opened.page.keyboard.press("Enter")
    assert opened.range() != pytest.approx(whole)
    opened.page.focus("#memory summary")
    opened.page.keyboard.press("Enter")
    assert "activations" in opened.page.inner_text("#memory table")


def test_a_finger_scrolls_the_page_and_does_not_zoom(browser: Any, pages: Any) -> None:
    opened = Opened(browser, pages["fsdp"][0], 390, has_touch=True, is_mobile=True)
    assert opened.page.evaluate("document.getElementById('chart-lanes').layout.dragmode") is False
    opened.page.tap("#lanes .buttons button:nth-of-type(2)")
    assert opened.range()[0] > 0


def test_dark_readers_get_light_letters(browser: Any, pages: Any) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        opened = Opened(browser, pages["fsdp"][0], color_scheme=scheme)
        colours[scheme] = opened.page.evaluate(
            "[getComputedStyle(document.body).color, document.querySelector('#chart-lanes .xtitle').style.fill]"
        )
    assert colours["light"][0] != colours["dark"][0]
    assert all(page == chart for page, chart in colours.values())


def test_hostile_names_are_only_shown(browser: Any, tmp_path: Path) -> None:
    path, page = tmp_path / "hostile.yaml", tmp_path / "hostile.html"
    layers = [{"name": f"{HOSTILE}{i}", "params": 1_000_000, "forward": "50 ms", "backward": "90 ms"} for i in range(3)]
    network = {
        "name": "<i>four</i>", "kind": "uniform", "nodes": 4, "bandwidth": "400 Mb/s", "alpha": "50 us",
        "source": "made up",
    }  # fmt: skip
    scenario = {"cluster": {"topology": network}, "model": {"layers": layers}, "train": {"micro_batch": 1}}
    path.write_text(json.dumps(scenario), encoding="utf-8")
    assert simulator("run", str(path), "--html", str(page)).code == 0
    opened = Opened(browser, page)
    assert opened.messages == []
    assert opened.page.title().startswith("No limit to judge by: ")
    assert not opened.page.query_selector_all("main b, main i")
    assert f"forward of {HOSTILE}0" in hovered(opened, "lanes", ".point path")


def test_a_step_of_4096_gpus_stays_below_10_mb_and_says_what_it_merges(browser: Any, pages: Any) -> None:
    assert pages["large"][1]["engine"]["ranks_total"] == 4096
    assert pages["large"][0].stat().st_size < 10_000_000
    opened = Opened(browser, pages["busy"][0])
    assert "tasks are drawn as" in opened.page.inner_text("#lanes")
    bars = len(opened.page.query_selector_all("#chart-lanes .point"))
    assert bars <= 3000
