// Curves of training by epoch, and vitals by epoch and block.

// Epochs as an x axis: whole numbers only.
function epochAxis(lists) {
  const all = lists.flat(), low = Math.min(...all), high = Math.max(...all), room = Math.max(0.5, (high - low) / 60);
  return { label: "epoch", unifiedhovertitle: { text: "epoch %{x}" }, range: [low - room, high + room], tick0: low, dtick: Math.max(1, Math.ceil((high - low) / 10)) };
}

// The line of one arm: a mean with its range over seeds.
function epochLine(i, epochs, mean, low, high, ranged, template) {
  const traces = [];
  if (ranged) traces.push(band(low, high, modelColour(i, 0.14), (k) => epochs[k]));
  traces.push({
    x: epochs, y: mean, mode: epochs.length > 25 ? "lines" : "lines+markers", name: letter(i), connectgaps: true,
    line: { color: modelColour(i), width: 2, dash: dashOf(i) }, marker: { size: 5, color: modelColour(i), symbol: symbolOf(i) },
    text: mean.map((_, k) => (low[k] !== high[k] ? ` (${format(low[k])} to ${format(high[k])})` : "")), hovertemplate: template,
  });
  return traces;
}

// A single run; failed runs end with a cross.
function seedLine(i, epochs, run) {
  const last = run.values.findLastIndex((v) => v !== null);
  return {
    x: epochs, y: run.values, mode: run.failed ? "lines+markers" : "lines", connectgaps: true,
    line: { color: modelColour(i, 0.6), width: 1, dash: dashOf(i) },
    marker: { size: run.values.map((_, k) => (k === last ? 9 : 0)), color: modelColour(i), symbol: "x-thin-open", line: { width: 2, color: modelColour(i) } },
    name: `${letter(i)}, seed ${run.seed}${run.failed ? " (failed)" : ""}`, hovertemplate: "%{y:.4g}",
  };
}

function learningChart({ key, unit, by }) {
  const traces = by.flatMap((arm, i) => {
    if (!arm || !shown[i]) return [];
    const runs = arm.runs.filter((run) => run.failed || checked("learning-seeds"));
    const mean = arm.mean.some((v) => v !== null)
      ? epochLine(i, arm.epochs, arm.mean, arm.low, arm.high, checked("learning-range"), `%{y:.4g}${unit && ` ${unit}`}%{text}`) : [];
    return [...runs.map((run) => seedLine(i, arm.epochs, run)), ...mean];
  });
  return {
    traces,
    layout: { xaxis: epochAxis(by.filter(Boolean).map((arm) => arm.epochs)), height: key === "val_top1" ? 320 : 240, hovermode: traces.length > 12 ? "closest" : "x unified" },
  };
}

const learningNodes = [...document.querySelectorAll("[data-learning]")];
learningNodes.forEach((node) => chart(node, () => learningChart(data.learning[Number(node.dataset.learning)]), true));
for (const id of ["learning-range", "learning-seeds"]) {
  if ($(id)) $(id).addEventListener("change", () => redraw((node) => learningNodes.includes(node) || node.id === "during-lines"));
}

// Vitals during training: one block of all arms as lines, all blocks of one arm as a heatmap.
if ($("during-vital")) {
  const vital = $("during-vital"), block = $("during-block");
  const now = () => data.during[Number(vital.value)];
  const blockOf = (arm) => (block.value === "last" ? arm.blocks - 1 : Number(block.value));

  function lines() {
    const { by } = now();
    const traces = by.flatMap((arm, i) => {
      if (!arm || !shown[i] || blockOf(arm) >= arm.blocks) return [];
      const [mean, low, high] = ["mean", "low", "high"].map((name) => arm[name].map((row) => row[blockOf(arm)]));
      return epochLine(i, arm.epochs, mean, low, high, checked("learning-range"), "%{y:.3g}%{text}");
    });
    return { traces, layout: { xaxis: epochAxis(by.filter(Boolean).map((arm) => arm.epochs)), height: 260 } };
  }

  function heat(i) {
    const { by, low, high } = now(), arm = by[i];
    const transposed = Array.from({ length: arm.blocks }, (_, b) => arm.mean.map((row) => row[b]));
    return {
      traces: [{
        z: transposed, x: arm.epochs.map(String), type: "heatmap", showscale: false, zmin: low, zmax: high > low ? high : low + 1,
        colorscale: [0, 0.25, 0.5, 0.75, 1].map((t) => [t, mixed(t)]), xgap: 1, ygap: 1, hoverongaps: false,
        hovertemplate: "epoch %{x}, block %{y}: %{z:.3g}<extra></extra>",
      }],
      layout: {
        height: 60 + Math.min(20, Math.max(8, 240 / arm.blocks)) * arm.blocks, hovermode: "closest",
        xaxis: { label: "epoch", type: "category", nticks: 8 },
        yaxis: { label: "block", range: [arm.blocks - 0.5, -0.5], dtick: Math.max(1, Math.ceil(arm.blocks / 6)), tick0: 0, showgrid: false },
      },
    };
  }

  const heats = [...document.querySelectorAll("[data-heat]")];
  const line = $("during-lines");
  function change() {
    const { by, low, high } = now();
    const most = Math.max(...by.map((arm) => (arm ? arm.blocks : 0)));
    fill(block, [["last", "last"], ...Array.from({ length: most }, (_, b) => [b, b])], block.value || "last");
    $("during-scale").textContent = `${format(low)} to ${format(high)}`;
    document.querySelectorAll("[data-heat-card]").forEach((card) => card.classList.toggle("absent", !by[card.dataset.heatCard]));
  }
  change();
  chart(line, lines, true);
  heats.forEach((node) => chart(node, () => (now().by[node.dataset.heat] ? heat(Number(node.dataset.heat)) : { traces: [], layout: {} }), true));
  vital.addEventListener("change", () => { change(); redraw((node) => node === line || heats.includes(node)); });
  block.addEventListener("change", () => draw(line));
}
