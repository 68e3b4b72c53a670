// Curves by depth, bounds and measured values, spectra and learned parameters.

const depth = Math.max(...data.models.map((m) => m.blocks));
const checked = (id) => !$(id) || $(id).checked;
const blocksOf = (values) => values.map((_, i) => i);

// One part of one vital for one model: mean, spread and random initialisation.
function lineOf(part, model, style, name) {
  const values = part.by[model];
  if (!values || !shown[model]) return [];
  const traces = [];
  if (checked("show-random") && values.random) {
    const tone = MODELS > 1 ? modelColour(model, 0.75) : colour("random");
    if (MODELS === 1) traces.push(band(...around(values.random, values.randomSd, style.limits), colour("random", 0.16)));
    traces.push({
      x: blocksOf(values.random), y: values.random, mode: "lines", line: { color: tone, width: 1.3, dash: "dot" },
      name: MODELS > 1 ? `${letter(model)} at random initialisation` : "random initialisation", hovertemplate: "%{y:.3g}", showlegend: false,
    });
  }
  if (checked("show-spread")) traces.push(band(...around(values.mean, values.sd, style.limits), style.fill));
  traces.push({
    x: blocksOf(values.mean), y: values.mean, mode: "lines+markers", connectgaps: false, name,
    line: { color: style.line, width: 2, dash: style.dash },
    marker: { size: 5, color: style.line, symbol: symbolOf(model) },
    text: values.mean.map((_, i) => (values.sd[i] ? ` ± ${format(values.sd[i])}` : "") + (values.n[i] ? `, ${values.n[i]} images` : "")),
    hovertemplate: "%{y:.3g}%{text}",
  });
  return traces;
}

// One standard deviation to both sides, within the range of the vital.
function around(mean, sd, [low, high] = [null, null]) {
  const within = (v) => Math.min(high ?? Infinity, Math.max(low ?? -Infinity, v));
  const at = (sign) => mean.map((m, i) => (m === null || sd[i] === null || sd[i] === undefined ? null : within(m + sign * sd[i])));
  return [at(-1), at(1)];
}

// The heads of one part, as thin lines of one colour.
function headsOf(part, model) {
  const rows = part.by[model];
  if (!rows || !shown[model]) return [];
  const count = Math.max(0, ...rows.map((r) => (r ? r.length : 0)));
  return Array.from({ length: count }, (_, head) => ({
    x: blocksOf(rows), y: rows.map((r) => (r && r[head] !== undefined ? r[head] : null)), mode: "lines+markers",
    line: { color: modelColour(model, 0.55), width: 1.2, dash: dashOf(model) },
    marker: { size: 4, color: modelColour(model, 0.7), symbol: symbolOf(model) },
    name: (MODELS > 1 ? `${letter(model)}, ` : "") + `head ${head}`, hovertemplate: "%{y:.3g}",
  }));
}

function matrixOf(part) {
  const model = shown.findIndex((on, i) => on && part.by[i]);
  if (model < 0) return { traces: [], layout: {} };
  const steps = [0, 0.25, 0.5, 0.75, 1].map((t) => [t, mixed(t)]);
  const count = part.by[model].length, dtick = Math.max(1, Math.ceil(count / 12));
  return {
    traces: [{
      z: part.by[model], type: "heatmap", colorscale: steps, zmin: 0, zmax: 1, name: letter(model),
      colorbar: { thickness: 8, outlinewidth: 0, tickfont: { size: 10, color: colour("soft") } },
      hovertemplate: "blocks %{y} and %{x}: %{z:.3f}<extra></extra>", xgap: 1, ygap: 1, hoverongaps: false,
    }],
    layout: {
      height: 260, hovermode: "closest",
      xaxis: { label: MODELS > 1 ? `block of ${letter(model)}` : "block", dtick, tick0: 0, range: [-0.5, count - 0.5], constrain: "domain" },
      yaxis: { range: [count - 0.5, -0.5], scaleanchor: "x", constrain: "domain", dtick, tick0: 0, showgrid: false },
    },
  };
}

function mixed(t) {
  const [low, high] = ["low", "high"].map((name) => colour(name).match(/[\d.]+/g).slice(0, 3).map(Number));
  return `rgb(${low.map((v, i) => Math.round(v + t * (high[i] - v))).join(",")})`;
}

const styleOf = (i, limits) => ({ line: modelColour(i), fill: modelColour(i, 0.14), dash: dashOf(i), limits });
const linesOf = (part, limits) => [
  ...(part.limits || []).map((limit) => ({
    x: blocksOf(limit.values), y: limit.values, mode: "lines", line: { color: colour("bad"), width: 1, dash: "dash" },
    name: plain(limit.name), hovertemplate: `%{y:.3g} and ${limit.above ? "above" : "below"}`, showlegend: false,
  })),
  ...data.models.flatMap((_, i) => lineOf(part, i, styleOf(i, limits), MODELS > 1 ? letter(i) : "mean")),
];

// Parts side by side. They share a scale if their values are of similar size: a rank and its share are not.
function facets(parts, width, limits) {
  const columns = Math.max(1, Math.min(parts.length, Math.floor(width / 210))), rows = Math.ceil(parts.length / columns);
  const tops = parts.map((p) => Math.max(1e-12, ...p.by.flatMap((v) => (v ? v.mean : [])).map(Math.abs)));
  const together = Math.max(...tops) / Math.min(...tops) < 4;
  const layout = { height: 60 + 165 * rows, annotations: [], margin: { l: 44, r: 8, t: 24, b: 34 } };
  const traces = parts.flatMap((part, k) => {
    const n = k ? String(k + 1) : "", row = Math.floor(k / columns), column = k % columns;
    const high = 1 / rows, wide = 1 / columns;
    layout[`xaxis${n}`] = { ...blockAxis(depth), label: "", domain: [column * wide + (column ? 0.035 : 0), (column + 1) * wide - 0.01], anchor: `y${n}`, dtick: Math.ceil(depth / 6) };
    layout[`yaxis${n}`] = { domain: [1 - (row + 1) * high + 0.18 * high, 1 - row * high - 0.08 * high], anchor: `x${n}`, ...(together && k ? { matches: "y" } : {}) };
    layout.annotations.push({ text: plain(part.label), xref: `x${n} domain`, yref: `y${n} domain`, x: 0, y: 1, yanchor: "bottom", xanchor: "left", showarrow: false, font: { size: 11, color: colour("soft") } });
    return linesOf(part, k ? undefined : limits).map((t) => ({ ...t, xaxis: `x${n}`, yaxis: `y${n}` }));
  });
  return { traces, layout };
}

// Blocks of findings: shaded columns for one model, bars above the chart in the colours of several.
const block = (b) => ({ type: "rect", xref: "x", yref: "paper", x0: b - 0.5, x1: b + 0.5, line: { width: 0 } });
const column = (b) => ({ ...block(b), y0: 0, y1: 1, fillcolor: colour("bad", 0.09), layer: "below" });
const bars = (blocks, model, row) => blocks.map((b) => ({
  ...block(b), ysizemode: "pixel", yanchor: 1, y0: 2 + 6 * row, y1: 6 + 6 * row, fillcolor: modelColour(model, 0.8),
}));

// The name of a limit at its first block, where curves have not yet come near it.
function limitLabel(limit) {
  const at = limit.values.findIndex((v) => v !== null);
  return at < 0 ? null : {
    text: plain(limit.label.replaceAll("_", " ")), x: at - 0.35, y: limit.values[at], xanchor: "left", yanchor: limit.above ? "bottom" : "top",
    showarrow: false, font: { size: 10, color: colour("bad") }, borderpad: 0,
  };
}

function curve(vital, node, select) {
  const lines = vital.parts.filter((p) => p.kind === "line");
  const choice = select ? select.value : "0";
  const everything = choice === "all" || (choice === "0" && $("show-parts").checked && lines.length > 1);
  const part = vital.parts[Number(choice)] || vital.parts[0];
  const limits = [vital.low, vital.high];
  node.parentNode.classList.toggle("wide", everything);
  if (everything) return facets(lines, printing ? 650 : node.clientWidth, limits);
  if (part.kind === "matrix") return matrixOf(part);
  const traces = part.kind === "heads" ? data.models.flatMap((_, i) => headsOf(part, i)) : linesOf(part, choice === "0" ? limits : undefined);
  const marked = vital.marks.map((blocks, i) => (shown[i] ? blocks : [])), rows = marked.flatMap((blocks, i) => (blocks.length ? [i] : []));
  const whole = $("show-range").checked && choice === "0" && vital.low !== null && vital.high !== null;
  return {
    traces,
    layout: {
      xaxis: blockAxis(depth), yaxis: whole ? { range: limits } : {},
      ...(MODELS > 1 ? { margin: { l: 44, r: 8, t: 8 + 6 * rows.length, b: 34 } } : {}),
      hovermode: traces.length > 8 ? "closest" : "x unified",
      shapes: MODELS > 1 ? rows.flatMap((i, row) => bars(marked[i], i, row)) : marked[0].map(column),
      annotations: part.kind === "line" ? (part.limits || []).map(limitLabel).filter(Boolean) : [],
    },
  };
}

for (const vital of data.curves) {
  const card = $(`curve-${vital.key}`);
  const node = card.querySelector(".plot"), select = card.querySelector("select");
  chart(node, () => curve(vital, node, select), true);
  if (select) select.addEventListener("change", () => draw(node));
}

const isCurve = (node) => Boolean(node.dataset.curve);
for (const id of ["show-spread", "show-random", "show-range", "show-parts"]) {
  if ($(id)) $(id).addEventListener("change", () => redraw(isCurve));
}

// Bounds and measured values.
document.querySelectorAll("[data-bound]").forEach((node) => chart(node, () => {
  const bound = data.bounds[Number(node.dataset.bound)];
  const traces = bound.by.flatMap((values, i) => [["bound", "dash"], ["measured", "solid"]].filter(([which]) => values[which].length).map(([which, dash]) => ({
    x: blocksOf(values[which]), y: values[which], mode: "lines+markers", name: (MODELS > 1 ? `${letter(i)}, ` : "") + which,
    line: { color: which === "bound" && MODELS === 1 ? colour("soft") : modelColour(i), width: which === "bound" ? 1.5 : 2.2, dash },
    marker: { size: which === "bound" ? 4 : 5, symbol: symbolOf(i) }, hovertemplate: "%{y:.3g}",
  })));
  return { traces, layout: { xaxis: blockAxis(depth), yaxis: bound.log ? logAxis(traces, "logarithmic") : {} } };
}));

// Spectra of the theory, with and without the skip.
document.querySelectorAll("[data-spectrum]").forEach((node) => chart(node, () => {
  const { lines } = data.spectra[Number(node.dataset.spectrum)];
  const traces = lines.map((line, k) => ({
    x: line.values.map((_, i) => (i + 1) / line.values.length), y: line.values, mode: "lines",
    line: { color: colour(`c${(MODELS > 1 ? line.model : k) % 6}`), width: 2, dash: dashOf(k) },
    name: (MODELS > 1 ? `${letter(line.model)}, ` : "") + plain(line.part) + `, block ${line.block}`, hovertemplate: "%{y:.3g}",
  }));
  return {
    traces,
    layout: {
      xaxis: { label: "share of singular values", range: [0, 1] }, yaxis: logAxis(traces), height: 240, showlegend: true,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11, color: colour("soft") }, itemclick: false, itemdoubleclick: false },
    },
  };
}));

// Learned parameters: dots for few values, bands of quantiles for many.
document.querySelectorAll("[data-learned]").forEach((node) => chart(node, () => {
  const { rows } = data.learned[Number(node.dataset.learned)];
  const traces = [];
  data.models.forEach((_, i) => {
    const own = rows.filter((r) => r.model === i && r.block !== null);
    if (!own.length) return;
    const at = (f) => { const out = Array(depth).fill(null); own.forEach((r) => { out[r.block] = f(r); }); return out; };
    if (own.some((r) => r.quantiles)) {
      const level = (q) => (r) => r.values[Math.round(q * (r.values.length - 1))];
      for (const [q, alpha] of [[0, 0.1], [0.05, 0.16], [0.25, 0.26]]) traces.push(band(at(level(q)), at(level(1 - q)), modelColour(i, alpha)));
    } else {
      const dots = own.flatMap((r) => r.values.map((v) => [r.block, v]));
      traces.push({ x: dots.map((d) => d[0]), y: dots.map((d) => d[1]), mode: "markers", marker: { size: 6, color: modelColour(i, 0.55), symbol: symbolOf(i) }, hoverinfo: "skip" });
    }
    traces.push({
      x: blocksOf(at(() => 0)), y: at((r) => r.mean), mode: "lines", line: { color: modelColour(i), width: 1.8, dash: dashOf(i) }, name: MODELS > 1 ? letter(i) : "mean",
      text: at((r) => ` (${format(r.low)} to ${format(r.high)})`), hovertemplate: "%{y:.3g}%{text}",
    });
  });
  const zero = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: colour("soft"), width: 1, dash: "dot" }, layer: "below" };
  return { traces, layout: { xaxis: blockAxis(depth), shapes: [zero] } };
}));
