// Accuracy and cost: one point per arm, labelled with its letter.

if ($("cost-plot")) {
  const node = $("cost-plot"), which = $("cost-which");
  const HEIGHT = 340, AWAY = 17; // pixels from a point to its letter
  const MARGIN = { l: 52, r: 16, t: 12, b: 48 };

  const extent = (spreads) => {
    const all = spreads.flatMap((s) => [s.low, s.high, s.mean]), low = Math.min(...all), high = Math.max(...all);
    const room = high > low ? (high - low) * 0.12 : Math.abs(high) * 0.05 || 1;
    return [low - room, high + room];
  };

  // Each letter is placed on the side of its point with the most space.
  function letters(points, across, up) {
    const width = (printing ? 650 : node.clientWidth || 600) - MARGIN.l - MARGIN.r, height = HEIGHT - MARGIN.t - MARGIN.b;
    const pixel = ({ x, y }) => [((x.mean - across[0]) / (across[1] - across[0])) * width, (1 - (y.mean - up[0]) / (up[1] - up[0])) * height];
    const taken = points.map(pixel);
    return points.map((point) => {
      const [left, top] = pixel(point);
      let best = null, most = -1;
      for (let k = 0; k < 8; k++) {
        const angle = (k - 1) * (Math.PI / 4), ax = Math.cos(angle) * AWAY, ay = Math.sin(angle) * AWAY;
        const at = [left + ax, top + ay];
        if (at[0] < 6 || at[0] > width - 6 || at[1] < 6 || at[1] > height - 6) continue;
        const free = Math.min(...taken.filter(([a, b]) => a !== left || b !== top).map(([a, b]) => Math.hypot(a - at[0], b - at[1])), 60);
        // Letters on error bars are hard to read, so diagonals are preferred.
        const score = free + (k % 2 ? 0 : 6);
        if (score > most) { most = score; best = { ax, ay, at }; }
      }
      best = best || { ax: AWAY, ay: -AWAY, at: [left + AWAY, top - AWAY] };
      taken.push(best.at);
      return {
        x: point.x.mean, y: point.y.mean, ax: best.ax, ay: best.ay, text: `<b>${letter(point.i)}</b>`, showarrow: true, arrowhead: 0,
        arrowwidth: 0.01, arrowcolor: "rgba(0,0,0,0)", font: { size: 13, color: modelColour(point.i) }, borderpad: 0,
      };
    });
  }

  function scatter() {
    const { by, title, ratio } = data.cost.against[Number(which.value)];
    const there = by.map((x, i) => ({ i, x, y: data.cost.accuracy[i] })).filter(({ x, y }) => x && y);
    const across = extent(there.map((p) => p.x)), up = extent(there.map((p) => p.y));
    const points = there.filter(({ i }) => shown[i]);
    const bars = (s, tone) => ({ type: "data", symmetric: false, array: [s.high - s.mean], arrayminus: [s.mean - s.low], thickness: 1.2, width: 3, color: tone });
    const traces = points.map(({ i, x, y }) => ({
      x: [x.mean], y: [y.mean], mode: "markers", name: letter(i), error_x: bars(x, modelColour(i, 0.7)), error_y: bars(y, modelColour(i, 0.7)),
      marker: { size: 11, color: modelColour(i), symbol: symbolOf(i), line: { color: colour("paper"), width: 1 } },
      hovertemplate: `${plain(data.models[i].name)}<br>top-1 ${format(y.mean)} %<br>${title} ${format(x.mean)}${ratio ? " ×" : ""}<extra></extra>`,
    }));
    const rule = { type: "line", layer: "below", line: { color: colour("soft"), width: 1, dash: "dot" } };
    const first = there.find((p) => p.i === 0);
    return {
      traces,
      layout: {
        height: HEIGHT, margin: MARGIN, hovermode: "closest", annotations: letters(points, across, up),
        xaxis: { label: ratio ? `${title}, relative to ${letter(0)}` : title, range: across, showgrid: true, exponentformat: "SI" },
        yaxis: { label: "top-1, %", range: up },
        shapes: first ? [{ ...rule, xref: "x", yref: "paper", x0: first.x.mean, x1: first.x.mean, y0: 0, y1: 1 }, { ...rule, xref: "paper", yref: "y", x0: 0, x1: 1, y0: first.y.mean, y1: first.y.mean }] : [],
      },
    };
  }

  chart(node, scatter, true);
  which.addEventListener("change", () => draw(node));
}
