// Attention and token similarity of one query patch of a sample image.

const images = JSON.parse($("samples").textContent);
if ($("map-picture")) {
  const [model, image, block, head] = ["model", "image", "block", "head"].map((name) => $(`map-${name}`));
  const over = $("map-over"), picture = $("map-picture");
  let place = [0.5, 0.5]; // of the query, relative to height and width, because grids differ between blocks

  const sample = () => images[Number(model.value)][Number(image.value)];
  const pictures = new Map();
  function pictureOf(uri) {
    if (!uri) return null;
    if (!pictures.has(uri)) {
      const img = new Image();
      img.addEventListener("load", drawMaps);
      img.src = uri;
      pictures.set(uri, img);
    }
    const img = pictures.get(uri);
    return img.complete && img.naturalWidth ? img : null;
  }

  // The query of a block that is nearest to the selected place.
  function queryOf(entry) {
    const [h, w] = entry.grid;
    let best = 0, least = Infinity;
    entry.queries.forEach(([r, c], i) => {
      const far = ((r + 0.5) / h - place[0]) ** 2 + ((c + 0.5) / w - place[1]) ** 2;
      if (far < least) { least = far; best = i; }
    });
    return best;
  }

  // One map as 0…255: of one head, or the mean over heads.
  function mapOf(entry, kind, which) {
    if (!entry || !entry[kind]) return null;
    const all = decode(entry[kind]), size = entry.grid[0] * entry.grid[1], count = entry.queries.length, q = queryOf(entry);
    const heads = kind === "maps" ? entry.heads : 1;
    const part = (h) => all.subarray((h * count + q) * size, (h * count + q + 1) * size);
    if (kind === "similarity" || which !== "mean") {
      const h = kind === "similarity" ? 0 : Number(which);
      return h < heads ? part(h) : null;
    }
    const sum = new Float32Array(size);
    for (let h = 0; h < heads; h++) part(h).forEach((v, i) => { sum[i] += v; });
    const top = Math.max(1e-6, ...sum);
    return Uint8Array.from(sum, (v) => Math.round((v / top) * 255));
  }

  const small = document.createElement("canvas");
  function paint(canvas, entry, values, mark) {
    const context = canvas.getContext("2d"), img = pictureOf(sample().picture);
    const aspect = img ? img.naturalHeight / img.naturalWidth : entry ? entry.grid[0] / entry.grid[1] : 1;
    const height = Math.round(canvas.width * aspect);
    if (canvas.height !== height) canvas.height = height;
    context.clearRect(0, 0, canvas.width, canvas.height);
    const behind = img && (values === null || over.checked);
    if (behind) {
      context.filter = values === null ? "none" : "grayscale(1)";
      context.drawImage(img, 0, 0, canvas.width, canvas.height);
      context.filter = "none";
    }
    if (entry && values) {
      const [h, w] = entry.grid;
      small.width = w; small.height = h;
      const pixels = new ImageData(w, h);
      values.forEach((v, i) => pixels.data.set([...heat[v], behind ? 165 : 255], 4 * i));
      small.getContext("2d").putImageData(pixels, 0, 0);
      context.imageSmoothingEnabled = false; // patches are shown as squares
      context.drawImage(small, 0, 0, canvas.width, canvas.height);
    }
    if (entry && mark) outline(context, canvas, entry);
  }

  function outline(context, canvas, entry) {
    const [h, w] = entry.grid, [r, c] = entry.queries[queryOf(entry)];
    const box = [(c / w) * canvas.width, (r / h) * canvas.height, canvas.width / w, canvas.height / h];
    for (const [tone, width] of [["#000", 6], ["#fff", 3]]) {
      context.strokeStyle = tone; context.lineWidth = width * canvas.width / 448;
      context.strokeRect(...box);
    }
  }

  function lattice(canvas, entry) {
    const context = canvas.getContext("2d"), [h, w] = entry.grid;
    for (const [r, c] of entry.queries) {
      context.beginPath();
      context.arc(((c + 0.5) / w) * canvas.width, ((r + 0.5) / h) * canvas.height, 3, 0, 2 * Math.PI);
      context.fillStyle = "rgba(255,255,255,0.9)"; context.fill();
      context.strokeStyle = "rgba(0,0,0,0.6)"; context.lineWidth = 1; context.stroke();
    }
  }

  function missing(canvas, text) {
    const context = canvas.getContext("2d");
    canvas.height = canvas.width;
    context.font = `20px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    context.fillText(text, canvas.width / 2, canvas.height / 2);
  }

  function drawMaps() {
    if (!sample()) return;
    const entry = sample().blocks[block.value];
    paint(picture, entry, null, true);
    if (!entry) return;
    lattice(picture, entry);
    outline(picture.getContext("2d"), picture, entry);
    const [r, c] = entry.queries[queryOf(entry)];
    $("map-query").textContent = `Query patch in row ${r}, column ${c}`;
    picture.setAttribute("aria-label", `${sample().name}: select a patch by clicking or with the arrow keys`);
    const panels = [["attention", "maps", `Attention in block ${block.value}, ${head.value === "mean" ? "mean over heads" : `head ${head.value}`}`],
      ["similarity", "similarity", `Similarity of tokens after block ${block.value}`]];
    for (const [name, kind, caption] of panels) {
      const values = mapOf(entry, kind, head.value);
      const canvas = $(`map-${name}`);
      if (values) paint(canvas, entry, values, true); else missing(canvas, "no map between patches");
      $(`map-${name}-caption`).textContent = caption;
      drawFilm(name, kind);
    }
    drawPictures(sample(), `${model.value}/${image.value}`, block.value, head.value, pictureOf(sample().picture), pick);
  }

  function pick(b) {
    block.value = b;
    fillHeads();
    drawMaps();
  }

  // All blocks, each as a button that selects it.
  function drawFilm(name, kind) {
    const film = $(`film-${name}`);
    const able = Object.keys(sample().blocks).filter((b) => sample().blocks[b][kind]);
    $(`film-${name}-name`).hidden = !able.length;
    fillFilm(film, `${model.value}/${image.value}`, able, pick);
    for (const button of film.children) {
      const entry = sample().blocks[button.dataset.block];
      button.setAttribute("aria-pressed", String(button.dataset.block === block.value));
      const values = mapOf(entry, kind, head.value) || mapOf(entry, kind, "mean");
      if (values) paint(button.firstChild, entry, values, false);
    }
  }

  function fillHeads() {
    const entry = sample().blocks[block.value];
    const count = entry && entry.maps ? entry.heads : 0;
    fill(head, [["mean", "mean over heads"], ...Array.from({ length: count }, (_, h) => [h, h])], head.value);
  }
  function fillBlocks() {
    const names = Object.keys(sample().blocks).sort((a, b) => a - b);
    fill(block, names.map((b) => [b, b]), names.includes(block.value) ? block.value : names[names.length - 1]);
    fillHeads();
  }
  function fillImages() {
    fill(image, images[Number(model.value)].map((s, i) => [i, s.name]), image.value);
    fillBlocks();
  }

  model.addEventListener("change", () => { fillImages(); drawMaps(); });
  image.addEventListener("change", () => { fillBlocks(); drawMaps(); });
  block.addEventListener("change", () => { fillHeads(); drawMaps(); });
  head.addEventListener("change", drawMaps);
  over.addEventListener("change", drawMaps);
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect();
    place = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    drawMaps();
  });
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const entry = sample().blocks[block.value];
    if (!step || !entry) return;
    event.preventDefault();
    const [r, c] = entry.queries[queryOf(entry)];
    const next = [0, 1].map((axis) => {
      const stops = [...new Set(entry.queries.map((q) => q[axis]))].sort((a, b) => a - b);
      const at = stops.indexOf([r, c][axis]) + step[axis];
      return stops[Math.min(stops.length - 1, Math.max(0, at))];
    });
    place = next.map((stop, axis) => (stop + 0.5) / entry.grid[axis]);
    drawMaps();
  });

  const ramp = $("map-ramp").getContext("2d");
  heat.forEach((rgb, v) => { ramp.fillStyle = `rgb(${rgb.join(",")})`; ramp.fillRect(Math.floor((v * 160) / 256), 0, 2, 8); });
  fillImages();
  drawMaps();
}
