// Small multiples of curves by head and block, and an enlarged panel.

if ($("grid-panels")) {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDE = 58, HIGH = 40, GAP = 5, LEFT = 18, TOP = 14;
  const FLOOR = 1e-3; // share of the largest value at which a logarithm is cut off
  const which = $("grid-which"), block = $("grid-block"), head = $("grid-head"), log = $("grid-log");
  const grid = () => data.grids[Number(which.value)];
  const curveOf = (model, b, h) => (((grid().by[model] || [])[b] || [])[h]) || null;
  const blocks = () => Math.max(...grid().by.map((m) => (m ? m.length : 0)));
  const heads = () => Math.max(...grid().by.flatMap((m) => (m || []).map((b) => (b ? b.length : 0))));

  const element = (name, attributes, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return parent.appendChild(node);
  };

  // All panels share one scale, so that flat ones look flat.
  function scale() {
    let top = 0;
    for (const m of grid().by) for (const b of m || []) for (const h of b || []) for (const v of h) if (v > top) top = v;
    top = top || 1;
    return (value) => (log.checked ? Math.max(0, 1 + Math.log10(Math.max(value / top, FLOOR)) / -Math.log10(FLOOR)) : Math.max(0, value / top));
  }

  function pathOf(values, at) {
    let pen = "M", path = "";
    values.forEach((value, i) => {
      if (value === null) { pen = "M"; return; }
      const x = 2 + (values.length > 1 ? i / (values.length - 1) : 0) * (WIDE - 4);
      path += `${pen}${x.toFixed(1)} ${(HIGH - 2 - at(value) * (HIGH - 4)).toFixed(1)}`;
      pen = "L";
    });
    return path;
  }

  function panels() {
    const columns = blocks(), rows = heads(), at = scale();
    const width = LEFT + columns * (WIDE + GAP), height = TOP + rows * (HIGH + GAP);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${grid().title}: ${rows} heads by ${columns} blocks`);
    svg.style.minWidth = `${LEFT + columns * 44}px`;
    svg.style.maxWidth = `${width * 1.7}px`;
    for (let b = 0; b < columns; b++) element("text", { x: LEFT + b * (WIDE + GAP) + WIDE / 2, y: 9, "text-anchor": "middle" }, svg).textContent = b;
    for (let h = 0; h < rows; h++) {
      element("text", { x: LEFT - 6, y: TOP + h * (HIGH + GAP) + HIGH / 2 + 3, "text-anchor": "end" }, svg).textContent = h;
      for (let b = 0; b < columns; b++) {
        const curves = data.models.map((_, i) => curveOf(i, b, h));
        if (!curves.some(Boolean)) continue;
        const group = element("g", { transform: `translate(${LEFT + b * (WIDE + GAP)} ${TOP + h * (HIGH + GAP)})` }, svg);
        const panel = element("rect", { class: "panel", width: WIDE, height: HIGH, rx: 2, "data-block": b, "data-head": h }, group);
        element("title", {}, panel).textContent = `block ${b}, head ${h}`;
        panel.addEventListener("click", () => { block.value = b; fillHeads(); head.value = h; pick(); });
        curves.forEach((values, i) => values && element("path", { d: pathOf(values, at), class: `c${i % 6}` }, group));
      }
    }
    $("grid-panels").replaceChildren(svg);
    mark();
  }

  function mark() {
    document.querySelectorAll("#grid-panels .panel").forEach((panel) =>
      panel.classList.toggle("picked", panel.dataset.block === block.value && (panel.dataset.head === head.value || head.value === "all")));
  }

  const detail = $("grid-detail");
  function large() {
    const b = Number(block.value), every = head.value === "all";
    const traces = data.models.flatMap((_, i) => {
      const rows = (grid().by[i] || [])[b] || [];
      return rows.flatMap((values, h) => {
        if (!every && h !== Number(head.value)) return [];
        return [{
          x: values.map((_, k) => (grid().x === "frequency" ? k / Math.max(1, values.length - 1) : (k + 1) / values.length)), y: values, mode: "lines",
          line: { color: modelColour(i, every ? 0.6 : 1), width: every ? 1.2 : 2, dash: MODELS > 1 ? dashOf(i) : "solid" },
          name: (MODELS > 1 ? `${letter(i)}, ` : "") + `head ${h}`, hovertemplate: "%{y:.3g}",
        }];
      });
    });
    const x = grid().x === "frequency" ? "frequency, from 0 to the highest" : "share of singular values";
    return {
      traces,
      layout: {
        xaxis: { label: x, range: [-0.01, 1.01] }, yaxis: log.checked ? logAxis(traces, plain(grid().meaning)) : { label: plain(grid().meaning), rangemode: "tozero" },
        hovermode: traces.length > 8 ? "closest" : "x unified", height: 300, margin: { l: 60, r: 8, t: 8, b: 44 },
      },
    };
  }

  function fillHeads() {
    const count = Math.max(0, ...data.models.map((_, i) => ((grid().by[i] || [])[Number(block.value)] || []).length));
    fill(head, [["all", "all heads"], ...Array.from({ length: count }, (_, h) => [h, h])], head.value || "all");
  }
  function pick() { mark(); draw(detail); }
  function change() {
    fill(block, Array.from({ length: blocks() }, (_, b) => [b, b]).filter(([b]) => grid().by.some((m) => m && m[b])), block.value || blocks() - 1);
    fillHeads();
    panels();
  }

  which.addEventListener("change", () => { log.checked = grid().log; change(); draw(detail); });
  block.addEventListener("change", () => { fillHeads(); pick(); });
  head.addEventListener("change", pick);
  log.addEventListener("change", () => { panels(); draw(detail); });
  log.checked = grid().log;
  change();
  chart(detail, large);
}
