// The heatmap: a tooltip shows the value of the cell under the pointer or in focus; arrow keys move between cells.

const heatmap = $("heatmap-table");
if (heatmap) {
  const tip = $("tip");
  const rows = [...heatmap.querySelectorAll("tr")].map((row) => [...row.querySelectorAll(".cell")]).filter((r) => r.length);
  const cells = rows.flat();
  cells.forEach((cell) => cell.setAttribute("aria-label", cell.dataset.tip));
  if (cells.length) cells[0].tabIndex = 0; // one stop for the tab key, not hundreds

  const show = (cell) => {
    const box = cell.getBoundingClientRect();
    tip.textContent = cell.dataset.tip;
    tip.hidden = false;
    const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${left}px`;
    tip.style.top = `${box.top - tip.offsetHeight - 6 < 0 ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
  };
  const hide = () => { tip.hidden = true; };
  const cellOf = (event) => event.target.closest(".cell");

  heatmap.addEventListener("pointerover", (event) => (cellOf(event) ? show(cellOf(event)) : hide()));
  heatmap.addEventListener("pointerleave", hide);
  heatmap.addEventListener("focusin", (event) => cellOf(event) && show(cellOf(event)));
  heatmap.addEventListener("focusout", hide);
  addEventListener("scroll", hide, { passive: true });
  heatmap.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    if (event.key === "Escape") hide();
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!cell || !step) return;
    event.preventDefault();
    const row = rows.findIndex((r) => r.includes(cell));
    const to = (rows[row + step[0]] || [])[rows[row].indexOf(cell) + step[1]];
    if (!to) return;
    cell.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
  $("heatmap-numbers").addEventListener("change", (event) => heatmap.classList.toggle("numbers", event.target.checked));
}
