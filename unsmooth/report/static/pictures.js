// Pictures of all patches of a sample image: one row of pictures per kind, and the paths of tokens.

// Control points of matplotlib's inferno, which has even lightness and suits all kinds of colour vision.
const INFERNO = [[0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85], [227, 89, 51], [249, 140, 10], [249, 201, 50], [252, 255, 164]];
const heat = Array.from({ length: 256 }, (_, v) => {
  const at = (v / 255) * (INFERNO.length - 1), i = Math.min(Math.floor(at), INFERNO.length - 2);
  return INFERNO[i].map((low, c) => Math.round(low + (at - i) * (INFERNO[i + 1][c] - low)));
});

const bytes = new Map();
function decode(text) {
  if (!bytes.has(text)) bytes.set(text, Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
  return bytes.get(text);
}

// One button per block with a canvas in it; `pick` is called with the block.
function fillFilm(film, key, blocks, pick) {
  if (film.dataset.key === `${key}/${blocks.join()}`) return;
  film.dataset.key = `${key}/${blocks.join()}`;
  film.replaceChildren(...blocks.map((b) => {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.dataset.block = b;
    button.setAttribute("aria-label", `block ${b}`);
    const canvas = button.appendChild(document.createElement("canvas"));
    canvas.width = canvas.height = 96;
    button.append(b);
    button.addEventListener("click", () => pick(b));
    return button;
  }));
}

// Colours of all patches: [r, g, b] by patch, or null if the block has no such picture.
function coloursOf(entry, kind, head) {
  if (!entry || !entry[kind]) return null;
  const all = decode(entry[kind]), size = entry.grid[0] * entry.grid[1];
  if (kind.startsWith("pca")) return Array.from({ length: size }, (_, i) => [...all.subarray(3 * i, 3 * i + 3)]);
  if (kind !== "class_attention") return Array.from(all, (v) => heat[v]);
  const heads = head === "mean" || Number(head) >= entry.heads ? [...Array(entry.heads).keys()] : [Number(head)];
  const sums = Array.from({ length: size }, (_, i) => heads.reduce((sum, h) => sum + all[h * size + i], 0));
  const top = Math.max(1e-6, ...sums);
  return sums.map((v) => heat[Math.round((v / top) * 255)]);
}

const NOTES = { // the number under a picture
  pca: (entry) => `${Math.round(100 * entry.pca_share)} %`,
  pca_own: (entry) => `${Math.round(100 * entry.pca_own_share)} %`,
  norms: (entry) => format(entry.largest_norm),
  rollout: (entry) => `${format(entry.rollout_peak)} ×`,
};

function paintPatches(canvas, entry, colours) {
  const [h, w] = entry.grid, pixels = new ImageData(w, h);
  colours.forEach((rgb, i) => pixels.data.set([...rgb, 255], 4 * i));
  canvas.width = w; canvas.height = h;
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

let pathsOf = null; // the sample whose paths are drawn

function drawPictures(sample, key, block, head, picture, pick) {
  document.querySelectorAll("[data-picture]").forEach((article) => {
    const kind = article.dataset.picture, reason = sample.leftOut[kind.replace("_own", "")];
    const note = article.querySelector(".left-out");
    note.hidden = !reason;
    note.textContent = reason ? `Left out: ${reason}.` : "";
    const any = kind === "trajectories" ? sample.trajectories : Object.values(sample.pictures).some((entry) => entry[kind]);
    article.querySelector(".reading").hidden = !any;
    if (kind === "trajectories") return drawPaths(article, sample, picture);
    const film = article.querySelector(".film");
    fillFilm(film, key, Object.keys(sample.pictures).filter((b) => sample.pictures[b][kind]), pick);
    for (const button of film.children) {
      const entry = sample.pictures[button.dataset.block];
      button.setAttribute("aria-pressed", String(button.dataset.block === block));
      paintPatches(button.firstChild, entry, coloursOf(entry, kind, head));
      if (kind in NOTES && button.childElementCount === 1) {
        button.appendChild(Object.assign(document.createElement("small"), { textContent: NOTES[kind](entry) }));
      }
    }
  });
}

// The colour of a place in the image: hue by direction from the middle, paler near it.
function placeColour([y, x]) {
  const [dy, dx] = [y - 0.5, x - 0.5], far = Math.min(1, 2 * Math.hypot(dy, dx));
  return `hsl(${Math.round((Math.atan2(dy, dx) * 180) / Math.PI + 180)},${Math.round(80 * far)}%,45%)`;
}

function drawPaths(article, sample, picture) {
  const paths = sample.trajectories;
  article.querySelector(".paths").hidden = !paths;
  if (!paths) return;
  const canvas = article.querySelector("canvas"), context = canvas.getContext("2d");
  canvas.height = picture ? Math.round((canvas.width * picture.naturalHeight) / picture.naturalWidth) : canvas.width;
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (picture) { context.filter = "grayscale(1)"; context.globalAlpha = 0.5; context.drawImage(picture, 0, 0, canvas.width, canvas.height); }
  context.filter = "none"; context.globalAlpha = 1;
  for (const place of paths.patches) {
    context.beginPath();
    context.arc(place[1] * canvas.width, place[0] * canvas.height, 7, 0, 2 * Math.PI);
    context.fillStyle = placeColour(place); context.fill();
    context.strokeStyle = "#fff"; context.lineWidth = 1.5; context.stroke();
  }
  if (pathsOf === sample) return;
  pathsOf = sample;
  const node = $("paths");
  if (charts.has(node)) { if (charts.get(node).drawn) draw(node); } else chart(node, pathChart);
}

function pathChart() {
  const { blocks, patches, points, shares } = pathsOf.trajectories;
  const traces = points.map((path, i) => ({
    x: path.map((p) => p[0]), y: path.map((p) => p[1]), mode: "lines+markers", text: blocks.map((b) => `block ${b}`),
    hovertemplate: "%{text}<extra></extra>", line: { color: placeColour(patches[i]), width: 1.2 }, opacity: 0.8,
    marker: { color: placeColour(patches[i]), size: path.map((_, k) => (k === path.length - 1 ? 7 : 2.5)) },
  }));
  const label = (k) => `component ${k + 1}, ${Math.round(100 * shares[k])} % of the variance`;
  return { traces, layout: { height: 380, hovermode: "closest", xaxis: { label: label(0) }, yaxis: { label: label(1) } } };
}
