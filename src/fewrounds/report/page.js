"use strict";

// The data of the page: criteria, methods with their looks, settings with their values, curves, and final values.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const written = (id) => Number(byId(id).defaultValue);
const time = { round: written("seconds-round"), gradient: written("seconds-gradient") };

const X_AXES = {
  round: { label: "communication rounds", of: (curve) => curve.round },
  gradients_per_worker: { label: "gradients per worker", of: (curve) => curve.gradients_per_worker },
  bytes: { label: "bytes moved, up and down, all workers", of: (curve) => curve.bytes },
  time: {
    label: "modelled time in seconds",
    of: (curve) =>
      curve.round.map((round, i) => round * curve.waits * time.round + curve.gradients_per_worker[i] * time.gradient),
  },
};

// --- what the controls say ---------------------------------------------------------------------------------------

const criterion = () => data.criteria.find((one) => one.key === byId("criterion").value);
const isLog = () => byId("scale").value === "log";
const settingSelects = () => [...document.querySelectorAll("#settings select")];
const chosenMethods = () => [...document.querySelectorAll("#methods input:checked")].map((box) => box.value);
const look = (method) => data.methods.find((one) => one.key === method);
const colour = (method) => (dark.matches ? look(method).dark : look(method).colour);

/** The chosen value of every setting, but for the one a comparison runs along. */
function chosenSetting(except) {
  const chosen = {};
  for (const select of settingSelects()) {
    const setting = data.settings.find((one) => one.key === select.name);
    if (setting.key !== except) chosen[setting.key] = setting.values[Number(select.value)].value;
  }
  return chosen;
}

const agrees = (item, setting) => Object.entries(setting).every(([key, value]) => item.setting[key] === value);
const isDrawable = (number) => number !== null && (!isLog() || number > 0);

/** The curves to draw, each with the points that have a place on the chosen scale. */
function shownCurves() {
  const key = criterion().key;
  const xs = X_AXES[byId("x-axis").value];
  return data.curves
    .filter((curve) => chosenMethods().includes(curve.method) && agrees(curve, chosenSetting()))
    .map((curve) => {
      const x = xs.of(curve);
      const points = curve.round.map((round, i) => ({ round, x: x[i], mean: curve.mean[key][i], sd: curve.sd[key][i] }));
      return { ...curve, points: points.filter((point) => isDrawable(point.mean)) };
    });
}

/** The final values along an axis, by method. */
function shownFinals(axis) {
  const key = criterion().key;
  const value = byId("value").value;
  const fixed = chosenSetting(axis);
  return chosenMethods().map((method) => {
    const own = data.finals.filter(
      (one) => one.method === method && one.criterion === key && one.value === value && agrees(one, fixed),
    );
    const points = own
      .filter((one) => one.setting[axis] !== null && isDrawable(one.mean))
      .map((one) => ({ x: one.setting[axis], mean: one.mean, sd: one.sd, n: one.n }))
      .sort((a, b) => a.x - b.x);
    return { method, points, lost: own.some((one) => one.diverged > 0) };
  });
}

// --- drawing -----------------------------------------------------------------------------------------------------

function layout(xTitle) {
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, automargin: true };
  const small = innerWidth < 600;
  return {
    margin: { l: 10, r: 12, t: 10, b: 10 },
    paper_bgcolor: css("--page"),
    plot_bgcolor: css("--page"),
    font: { color: css("--text"), family: "system-ui, -apple-system, Segoe UI, sans-serif", size: small ? 12 : 14 },
    showlegend: false,
    hovermode: "closest",
    dragmode: touch.matches ? false : "zoom", // a finger scrolls the page
    xaxis: { ...axis, title: { text: xTitle }, nticks: small ? 5 : 9 },
    yaxis: { ...axis, title: { text: criterion().label }, type: isLog() ? "log" : "linear", dtick: null, nticks: 8 },
  };
}

const CONFIG = { displayModeBar: false, responsive: true };

function lineTrace(method, points) {
  const { label, dash, symbol } = look(method);
  return {
    type: "scatter",
    mode: "lines+markers",
    name: label,
    meta: { kind: "curve", method },
    x: points.map((point) => point.x),
    y: points.map((point) => point.mean),
    line: { color: colour(method), dash, width: 2 },
    marker: { color: colour(method), symbol, size: 8, maxdisplayed: 8 },
    hovertemplate: "%{fullData.name}<br>%{x:.6~g}: %{y:.4~g}<extra></extra>",
  };
}

/** The area between mean - sd and mean + sd; on a log scale it stops above 0. */
function bandTrace(method, points, floor) {
  const low = points.map((point) => Math.max(point.mean - point.sd, floor));
  const high = points.map((point) => point.mean + point.sd);
  const x = points.map((point) => point.x);
  return {
    type: "scatter",
    mode: "lines",
    name: look(method).label,
    meta: { kind: "band", method },
    x: [...x, ...x.slice().reverse()],
    y: [...high, ...low.reverse()],
    fill: "toself",
    fillcolor: `${colour(method)}2e`,
    line: { width: 0 },
    hoverinfo: "skip",
  };
}

function drawCurves() {
  const curves = shownCurves();
  const traces = [];
  const lowest = Math.min(...curves.flatMap((curve) => curve.points.map((point) => point.mean)));
  if (byId("band").checked) {
    for (const { method, points } of curves) {
      const wide = points.filter((point) => point.sd !== null);
      if (wide.length > 1) traces.push(bandTrace(method, wide, isLog() ? lowest / 2 : -Infinity));
    }
  }
  for (const { method, points } of curves) if (points.length) traces.push(lineTrace(method, points));
  const shape = layout(X_AXES[byId("x-axis").value].label);
  if (byId("x-axis").value !== "round") shape.xaxis.tickformat = "~s";
  if (byId("x-axis").value === "bytes") shape.xaxis.ticksuffix = "B";
  const top = ceiling(curves);
  if (top !== null) shape.yaxis.range = isLog() ? [Math.log10(lowest) - 0.01, Math.log10(top)] : [lowest * 0.95, top];
  Plotly.react("chart", traces, shape, CONFIG);
  byId("chart-caption").textContent = caption(curves);
  byId("chart").setAttribute("aria-label", `${criterion().label} against ${X_AXES[byId("x-axis").value].label}`);
}

/** Where to end the axis if a loss is far above the start, which would press all else together; otherwise null. */
function ceiling(curves) {
  if (!criterion().key.endsWith("_loss")) return null;
  const drawn = curves.filter((curve) => curve.points.length);
  const start = Math.max(...drawn.map((curve) => curve.points[0].mean));
  const highest = Math.max(...drawn.flatMap((curve) => curve.points.map((point) => point.mean)));
  return highest > 2 * start ? 1.2 * start : null;
}

function caption(curves) {
  if (!curves.length) return "There are no runs for this choice.";
  const counts = [...new Set(curves.map((curve) => curve.n))];
  const same = counts.length === 1;
  const several = `Mean over the seeds${same ? ` (n = ${counts[0]})` : ""}; band ± one standard deviation.`;
  const parts = [same && counts[0] === 1 ? "One run each." : several];
  const ends = curves.map((curve) => {
    const last = curve.points[curve.points.length - 1];
    const more = [last ? `round ${last.round}` : "", curve.eta ? `η = ${curve.eta}` : "", same ? "" : `n = ${curve.n}`];
    const text = last ? `${show(last.mean)}${last.sd === null ? "" : ` ± ${show(last.sd, 2)}`}` : "not finite";
    return `${look(curve.method).label} ${text} (${more.filter(Boolean).join(", ")})`;
  });
  parts.push(`At the end of the curves: ${ends.join("; ")}.`);
  if (ceiling(curves) !== null) parts.push("The axis ends a little above the start, and curves beyond it leave the chart.");
  for (const { method, n, diverged, unfinished } of curves) {
    const label = look(method).label;
    if (diverged) parts.push(`${label}: ${diverged} of ${n} runs diverged, and its curve ends where the first did.`);
    if (unfinished) parts.push(`${label}: ${unfinished} runs are not finished.`);
  }
  return parts.join(" ");
}

const show = (number, digits = 3) => Number(number.toPrecision(digits)).toString();

function drawComparison(axis) {
  const found = shownFinals(axis.key);
  const lines = found.filter((line) => line.points.length);
  const traces = lines.map(({ method, points }) => ({
    ...lineTrace(method, points),
    error_y: { type: "data", array: points.map((point) => point.sd ?? 0), thickness: 1.2, width: 4, color: colour(method) },
  }));
  const xs = [...new Set(lines.flatMap((line) => line.points.map((point) => point.x)))].sort((a, b) => a - b);
  const shape = layout(axis.label);
  const numeric = axis.key === "budget" && xs[0] > 0 ? "log" : "linear";
  Object.assign(shape.xaxis, { type: numeric, tickvals: xs, ticktext: xs.map(String) });
  Plotly.react(`against-${axis.key}`, traces, shape, CONFIG);
  const at = data.settings.filter((one) => one.key in chosenSetting(axis.key));
  const fixed = at.map((one) => `${one.label} ${one.values[Number(byId(`setting-${one.key}`).value)].text}`).join(", ");
  byId(`against-${axis.key}-title`).textContent = `Against ${axis.label}${fixed ? `, at ${fixed}` : ""}`;
  const counts = [...new Set(lines.flatMap((line) => line.points.map((point) => point.n)))].sort((a, b) => a - b);
  const lost = found.filter((line) => line.lost).map((line) => look(line.method).label);
  const value = byId("value").value === "last" ? "at the end of the run" : "best over the run";
  byId(`against-${axis.key}-caption`).textContent = lines.length
    ? `The ${criterion().label} ${value}, n = ${counts.join(", ")}.` +
      (lost.length ? ` Without the diverged runs of ${lost.join(", ")}.` : "")
    : "There are no finished runs for this choice.";
}

function draw() {
  byId("time").hidden = byId("x-axis").value !== "time";
  drawCurves();
  for (const axis of comparisons) drawComparison(axis);
}

// --- the data shown, as CSV --------------------------------------------------------------------------------------

const quoted = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

function curvesAsCsv() {
  const setting = chosenSetting();
  const key = criterion().key;
  const axis = byId("x-axis").value;
  const head = ["method", "eta", "n", ...Object.keys(setting), "round", ...(axis === "round" ? [] : [axis])];
  const rows = [[...head, `${key}_mean`, `${key}_sd`]];
  for (const { method, eta, n, points } of shownCurves()) {
    for (const { round, x, mean, sd } of points) {
      rows.push([method, eta, n, ...Object.values(setting), round, ...(axis === "round" ? [] : [x]), mean, sd]);
    }
  }
  return rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([curvesAsCsv()], { type: "text/csv" }));
  link.download = `${criterion().key}-against-${byId("x-axis").value}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// --- building the controls ---------------------------------------------------------------------------------------

const option = (value, text, selected) => new Option(text, value, selected, selected);

/** A line with its dashes and marker, so that the list of methods is the legend. */
function swatch(method) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 44 14");
  svg.setAttribute("aria-hidden", "true");
  const add = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    svg.append(node);
  };
  const { dash, path } = look(method);
  const dashes = dash === "solid" ? "none" : dash.replaceAll("px", "");
  add("line", { x1: 0, y1: 7, x2: 44, y2: 7, stroke: colour(method), "stroke-width": 2, "stroke-dasharray": dashes });
  add("path", { d: path, fill: colour(method) });
  return svg;
}

function buildMethods() {
  const chosen = document.querySelector("#methods input") ? chosenMethods() : data.methods.map((one) => one.key);
  document.querySelectorAll("#methods label").forEach((label) => label.remove());
  for (const { key, label } of data.methods) {
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: key, checked: chosen.includes(key) });
    const node = document.createElement("label");
    node.append(box, swatch(key), label);
    byId("methods").append(node);
  }
}

function buildComparison(axis) {
  const box = document.createElement("div");
  const title = Object.assign(document.createElement("h3"), { id: `against-${axis.key}-title` });
  const chart = Object.assign(document.createElement("div"), { id: `against-${axis.key}`, className: "chart" });
  const note = Object.assign(document.createElement("figcaption"), { id: `against-${axis.key}-caption` });
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-labelledby", title.id);
  const figure = document.createElement("figure");
  figure.append(chart, note);
  box.append(title, figure);
  byId("comparison-list").append(box);
}

function readTime() {
  for (const [key, id] of [["round", "seconds-round"], ["gradient", "seconds-gradient"]]) {
    const number = byId(id).valueAsNumber;
    const valid = Number.isFinite(number) && number >= 0;
    byId(id).setAttribute("aria-invalid", String(!valid));
    if (valid) time[key] = number;
  }
}

for (const { key, label } of data.criteria) byId("criterion").append(option(key, label, false));
for (const { key, label, values, start } of data.settings) {
  const select = Object.assign(document.createElement("select"), { id: `setting-${key}`, name: key });
  values.forEach(({ text }, i) => select.append(option(i, text, i === start)));
  const node = Object.assign(document.createElement("div"), { className: "field" });
  node.append(Object.assign(document.createElement("label"), { htmlFor: select.id, textContent: label }), select);
  byId("settings").append(node);
}
const comparisons = data.settings.filter(
  ({ key, values }) => ["q", "budget"].includes(key) && values.filter(({ value }) => value !== null).length > 1,
);
comparisons.forEach(buildComparison);
if (!comparisons.length) byId("comparison-list").textContent = "There is one q and one budget, so nothing to compare along them.";
buildMethods();

const naturalScale = () => { byId("scale").value = criterion().log ? "log" : "linear"; };
naturalScale();
readTime(); // a browser may bring back what was typed before a reload
byId("criterion").addEventListener("change", naturalScale); // before the form's own listener
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("controls").addEventListener("change", draw);
for (const id of ["seconds-round", "seconds-gradient"]) byId(id).addEventListener("input", () => { readTime(); draw(); });
byId("value").addEventListener("change", draw);
byId("download").addEventListener("click", download);
dark.addEventListener("change", () => { buildMethods(); draw(); });
draw();
