// Shared by all parts of the page: the data, the colours of the theme, and the drawing of charts.

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const $ = (id) => document.getElementById(id);
const MODELS = data.models.length;
const shown = data.models.map(() => true); // models that the legend does not hide
const DASHES = ["solid", "7px,3px", "3px,2px", "9px,2px,2px,2px", "12px,3px", "1.5px,2.5px"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x"];

// Plotly interprets some HTML in texts, so names are escaped.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
// In charts a letter stands for a model, because names are long. The legends explain it.
const letter = (i) => data.models[i].letter;

function format(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("-", "−");
  return Number(value.toPrecision(3)).toString().replace("-", "−");
}

function fill(select, options, chosen) {
  select.replaceChildren(
    ...options.map(([value, text]) => Object.assign(document.createElement("option"), { value, textContent: text })),
  );
  if (options.some(([value]) => String(value) === String(chosen))) select.value = String(chosen);
}

// A custom property holds the colours of both themes until an element uses it, so the colour is read from an element.
const probe = document.body.appendChild(document.createElement("span"));
probe.hidden = true;
function colour(name, alpha = 1) {
  probe.style.color = `var(--${name})`;
  const rgb = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  return `rgba(${rgb.join(",")},${alpha})`;
}
// Six colours, then the same again with other dashes and symbols.
const modelColour = (i, alpha) => colour(`c${i % 6}`, alpha);
const dashOf = (i) => DASHES[(i + Math.floor(i / 6)) % 6];
const symbolOf = (i) => SYMBOLS[(i + Math.floor(i / 6)) % 6];

// Charts are drawn when they come near the window, and the others when the browser is idle.
const charts = new Map();
const seen = new IntersectionObserver(
  (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => draw(e.target)),
  { rootMargin: "500px" },
);

function chart(node, build, follows = false) {
  charts.set(node, { build, follows, drawn: false }); // follows: redrawn when the legend hides a model
  seen.observe(node);
}

let printing = false;
function draw(node) {
  const entry = charts.get(node);
  entry.drawn = true;
  seen.unobserve(node);
  const { traces, layout } = entry.build();
  const height = layout.height || 210;
  // In print two charts are side by side, whatever the width of the window.
  const size = printing ? { autosize: false, width: node.closest(".wide") ? 650 : 315, height: height > 210 ? height : 160 } : { height };
  node.style.height = `${size.height}px`;
  Plotly.react(node, traces, frame({ ...layout, ...size }), { displayModeBar: false, responsive: true });
  // A chart keeps its old width when its card grows.
  if (!printing && node.clientWidth && Math.abs(node._fullLayout.width - node.clientWidth) > 1) Plotly.Plots.resize(node);
}

function redraw(which = () => true) {
  for (const [node, entry] of charts) if (entry.drawn && which(node, entry)) draw(node);
}

function drawRest() {
  for (const [node, entry] of charts) if (!entry.drawn) draw(node);
}

// A chart in a closed fold has no size: it is drawn when the fold opens.
const folded = (node) => Boolean(node.closest("details:not([open])"));
// With a limit: the frame of a notebook may not be idle for long, or not be told.
const later = (f) => (window.requestIdleCallback ? requestIdleCallback(f, { timeout: 300 }) : setTimeout(f, 200));
function idle() {
  const next = [...charts].find(([node, entry]) => !entry.drawn && !folded(node));
  if (next) {
    draw(next[0]);
    later(idle);
  } else {
    root.dataset.drawn = "all";
  }
}

// Axes and fonts of all charts.
function frame(layout) {
  const ink = colour("ink"), soft = colour("soft"), line = colour("line");
  const axis = {
    gridcolor: line, linecolor: line, zeroline: false, tickfont: { size: 11, color: soft }, fixedrange: true,
    automargin: true, exponentformat: "power",
  };
  const axes = {};
  for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis/.test(key))])) {
    const { label = "", ...own } = layout[name] || {};
    const title = { text: label, font: { size: 11, color: soft }, standoff: 4 };
    axes[name] = { ...axis, showgrid: name[0] === "y", ...own, title };
  }
  return {
    margin: { l: 44, r: 8, t: 8, b: 34 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, color: ink, size: 12 },
    showlegend: false, dragmode: false, hovermode: "x unified",
    hoverlabel: { bgcolor: colour("paper"), bordercolor: line, font: { size: 12, color: ink }, namelength: -1 },
    ...layout,
    ...axes,
  };
}

// An x axis of blocks: whole numbers only.
function blockAxis(count) {
  return { label: "block", unifiedhovertitle: { text: "block %{x}" }, range: [-0.5, count - 0.5], dtick: Math.max(1, Math.ceil(count / 12)), tick0: 0 };
}

// A logarithmic axis with a line at each power of ten, or at every few of them.
function logAxis(traces, label = "") {
  const logs = traces.flatMap((t) => t.y).filter((v) => v > 0).map(Math.log10);
  return { type: "log", label, dtick: Math.max(1, Math.ceil((Math.max(...logs) - Math.min(...logs)) / 6)) };
}

// A band between two lines, as closed shapes with gaps where there is no value.
function band(low, high, fillcolor, at = (i) => i) {
  const x = [], y = [];
  let from = -1;
  for (let i = 0; i <= low.length; i++) {
    const here = i < low.length && low[i] !== null && high[i] !== null;
    if (here && from < 0) from = i;
    if (!here && from >= 0) {
      for (let j = from; j < i; j++) { x.push(at(j)); y.push(high[j]); }
      for (let j = i - 1; j >= from; j--) { x.push(at(j)); y.push(low[j]); }
      x.push(null); y.push(null);
      from = -1;
    }
  }
  return { x, y, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor, hoverinfo: "skip", showlegend: false };
}

// The legend: all buttons and table rows of a model are hidden together.
document.querySelectorAll(".model-toggle").forEach((button) => button.addEventListener("click", () => {
  const i = button.dataset.model;
  shown[i] = !shown[i];
  document.querySelectorAll(`.model-toggle[data-model="${i}"]`).forEach((b) => b.setAttribute("aria-pressed", String(shown[i])));
  document.querySelectorAll(`[data-row="${i}"]`).forEach((row) => { row.hidden = !shown[i]; });
  redraw((_, entry) => entry.follows);
}));

// Folds: a link into one opens it, and so does print.
function unfold(node) {
  const inner = node.querySelector(":scope > details.fold");
  if (inner) inner.open = true;
  for (let outer = node.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
}
function follow() {
  if (location.hash.length > 1) show($(decodeURIComponent(location.hash.slice(1))));
}
function show(target) {
  if (!target) return;
  unfold(target);
  target.scrollIntoView();
}
addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link) return;
  if (location.protocol === "about:") { // in the frame of a notebook, the link would load the notebook
    event.preventDefault();
    show($(decodeURIComponent(link.getAttribute("href").slice(1))));
  } else if (link.hash === location.hash) follow(); // the hash does not change
});
document.querySelectorAll("details").forEach((fold) => fold.addEventListener("toggle", () => {
  if (!fold.open) return;
  delete root.dataset.drawn;
  later(idle);
}));

// Theme: that of the system until the button is used.
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : darkSystem.matches);
const themeButton = $("theme");
function nameTheme() {
  themeButton.textContent = dark() ? "Light theme" : "Dark theme";
}
themeButton.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  nameTheme();
  redraw();
});
darkSystem.addEventListener("change", () => { nameTheme(); redraw(); });
nameTheme();

// Print is always light.
let themeBefore, closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll(".fold:not([open]), .finding:not([open])")];
  closed.forEach((fold) => { fold.open = true; });
  themeBefore = root.dataset.theme;
  root.dataset.theme = "light";
  printing = true;
  drawRest();
  redraw();
});
addEventListener("afterprint", () => {
  printing = false;
  closed.forEach((fold) => { fold.open = false; });
  if (themeBefore) root.dataset.theme = themeBefore; else delete root.dataset.theme;
  redraw();
});
addEventListener("load", () => { follow(); later(idle); });
