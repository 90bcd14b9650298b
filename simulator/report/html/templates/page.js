(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = () => window.innerWidth < 600;
  const style = getComputedStyle(document.documentElement);
  const theme = () => {
    const colour = (name) => style.getPropertyValue(name).trim();
    return { ink: colour("--ink"), paper: colour("--paper"), soft: colour("--soft"), grid: colour("--grid"), line: colour("--line") };
  };

  /* Colours called "@ink" and "@paper" are those of the page, light or dark. */
  function painted(value, colours) {
    if (value === "@ink" || value === "@paper") return colours[value.slice(1)];
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((item) => painted(item, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, painted(item, colours)]));
  }

  function laidOut(figure, colours) {
    const layout = painted(figure.layout, colours);
    const size = narrow() ? 11 : 13;
    layout.font = { family: getComputedStyle(document.body).fontFamily, size: size, color: colours.ink };
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.hoverlabel = Object.assign({ bgcolor: colours.paper, bordercolor: colours.soft, font: { color: colours.ink, size: 13 } }, layout.hoverlabel);
    for (const name of ["xaxis", "yaxis"]) {
      Object.assign(layout[name], { gridcolor: colours.grid, linecolor: colours.line, tickcolor: colours.line });
    }
    if (narrow()) {
      layout.xaxis.nticks = 5;
      layout.annotations = (layout.annotations || []).filter((one) => one.name !== "wide");
    }
    /* A finger that drags over a chart wants to scroll the page; the buttons zoom. */
    if (narrow() || window.matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
    return layout;
  }

  const place = (key) => document.getElementById("chart-" + key);
  const options = { responsive: true, displayModeBar: false, scrollZoom: false, doubleClick: "reset" };

  function draw(key) {
    const colours = theme();
    const figure = figures[key];
    const data = painted(figure.data, colours);
    /* Names beside points have no room on a phone; the table holds them. */
    if (narrow()) data.forEach((trace) => { if (trace.mode === "markers+text") trace.mode = "markers"; });
    return Plotly.react(place(key), data, laidOut(figure, colours), options);
  }

  function setUpZoom() {
    const chart = place("lanes");
    if (!chart || !figures.lanes) return;
    const end = figures.lanes.end;
    const buttons = Array.from(document.querySelectorAll("#lanes .buttons button"));
    const show = (from, to) => {
      const width = Math.min(end, Math.max(end * 1e-5, to - from));
      const start = Math.min(Math.max(0, from), end - width);
      return Plotly.relayout(chart, { "xaxis.range": [start, start + width] });
    };
    for (const button of buttons) {
      button.addEventListener("click", () => {
        const [from, to] = chart.layout.xaxis.range;
        const middle = (from + to) / 2;
        if (button.dataset.range) show(...button.dataset.range.split(",").map(Number));
        else if (button.dataset.zoom) show(middle - (to - from) / 2 * button.dataset.zoom, middle + (to - from) / 2 * button.dataset.zoom);
        else show(from + (to - from) * button.dataset.move, to + (to - from) * button.dataset.move);
      });
    }
    const press = () => {
      const [from, to] = chart.layout.xaxis.range;
      for (const button of buttons.filter((one) => one.dataset.range)) {
        const [start, stop] = button.dataset.range.split(",").map(Number);
        const same = Math.abs(start - from) < 1e-6 * end && Math.abs(Math.min(stop, end) - to) < 1e-6 * end;
        button.setAttribute("aria-pressed", String(same));
      }
      edge(to - from < 0.15 * end);
    };
    /* From near, bars have edges; from afar these would cover them. */
    let edged = false;
    const edge = (near) => {
      if (near === edged) return;
      edged = near;
      const own = chart.data.map((trace) => trace.marker.color);
      Plotly.restyle(chart, { "marker.line.color": near ? theme().paper : own, "marker.line.width": near ? 1 : 0.6 });
    };
    chart.on("plotly_relayout", press);
    press();
  }

  /* One chart after the other, so that the page can be read before the last one is drawn. */
  const keys = Object.keys(figures);
  function drawNext(number) {
    if (number === keys.length) {
      document.documentElement.dataset.drawn = "yes";
      return;
    }
    draw(keys[number]).then(() => {
      if (keys[number] === "lanes") setUpZoom();
      setTimeout(() => drawNext(number + 1), 0);
    });
  }
  drawNext(0);

  let wasNarrow = narrow();
  const again = () => keys.forEach(draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("resize", () => {
    if (narrow() !== wasNarrow) {
      wasNarrow = narrow();
      again();
    }
  });
})();
