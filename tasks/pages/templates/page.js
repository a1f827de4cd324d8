"use strict";
// Interactive parts of a page: tooltips of plots (pointer or arrow keys), sorting and filtering of tables, reloading.
for (const plot of document.querySelectorAll("svg.plot")) {
  const points = [...plot.querySelectorAll("[data-tip]")];
  if (!points.length) continue;
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  plot.parentElement.append(tip);
  let at = -1;
  const isVisible = (index) => points[index].getClientRects().length > 0;
  const show = (index) => {
    if (at >= 0) points[at].classList.remove("near");
    at = index;
    tip.hidden = index < 0;
    if (index < 0) return;
    points[index].classList.add("near");
    tip.textContent = points[index].dataset.tip;
    const home = plot.parentElement.getBoundingClientRect(), box = points[index].getBoundingClientRect();
    const left = (box.left + box.right) / 2 - home.left - tip.offsetWidth / 2;
    tip.style.left = Math.max(0, Math.min(left, home.width - tip.offsetWidth)) + "px";
    const above = box.top - home.top - tip.offsetHeight - 8;
    tip.style.top = (above < 0 ? box.top - home.top + 12 : above) + "px";
  };
  plot.addEventListener("pointermove", (event) => {
    let best = -1, least = 40 ** 2;
    points.forEach((point, index) => {
      const box = point.getBoundingClientRect();
      if (!box.width) return;  // hidden
      const across = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const down = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const far = across ** 2 + down ** 2;
      if (far < least) [best, least] = [index, far];
    });
    show(best);
  });
  plot.addEventListener("pointerleave", () => show(-1));
  plot.addEventListener("blur", () => show(-1));
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      event.preventDefault();
      let next = at < 0 && step < 0 ? points.length - 1 : at + step;
      while (next in points && !isVisible(next)) next += step;
      if (next in points) show(next);
    } else if (event.key === "Escape") show(-1);
  });
}
// The page of a running run reloads itself. If it was not updated for a while, show the notice that the run may be dead.
for (const notice of document.querySelectorAll("[data-written]")) {
  const check = () => (notice.hidden = Date.now() / 1000 - notice.dataset.written < 120);
  check();
  setInterval(check, 5000);
}
for (const box of document.querySelectorAll("input[data-again]")) {
  const reload = () => {
    if (box.checked && !document.hidden && getSelection().isCollapsed) location.reload();  // keeps the scroll position
  };
  setInterval(reload, 1000 * box.dataset.again);
}
// An evaluation of a run links to the pages of the run and of all runs, from its own place in the folder of the run.
const place = decodeURI(location.pathname).match(/^(.*?)(\/runs\/checkouts\/[^/]+)?\/evaluation\/[^/]+\/report\.html$/);
for (const link of place ? document.querySelectorAll("[data-up]") : []) {
  const up = link.dataset.up === "run" ? "../.." : place[2] ? "../../../../.." : "../..";
  link.href = `${up}/reports/${link.dataset.up}.html`;
  link.hidden = false;
}
const collator = new Intl.Collator("en", { numeric: true });
const valueOf = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value ? Number(cell.dataset.value) : "value" in cell.dataset ? "" : cell.textContent.trim();
};
const compare = (one, other) =>
  typeof one === "number" && typeof other === "number" ? one - other : collator.compare(String(one), String(other));
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  for (const button of table.querySelectorAll("thead button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const column = heads.indexOf(head), rows = [...table.tBodies[0].rows];
      const empty = (value) => value === "" || Number.isNaN(value);  // rows without a value come last in both orders
      rows.sort((one, other) => {
        const [a, b] = [valueOf(one, column), valueOf(other, column)];
        return empty(a) - empty(b) || (down ? compare(b, a) : compare(a, b));
      });
      table.tBodies[0].append(...rows);
    });
  }
}
for (const input of document.querySelectorAll("input.filter")) {
  const table = document.getElementById(input.dataset.table), status = document.getElementById(input.dataset.count);
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    if (status) status.textContent = `${shown} of ${rows.length} shown`;
    document.dispatchEvent(new CustomEvent("filtered", { detail: table }));
  };
  input.addEventListener("input", apply);
  apply();  // browsers keep the typed text when they go back
}
// The index of runs: plots show the selected runs, or those that pass the filter; the command compares the selected runs.
const runs = document.getElementById("runs");
if (runs) {
  const rows = [...runs.tBodies[0].rows], lines = [...document.querySelectorAll("svg [data-run]")];
  const part = (name) => document.getElementById(name);
  const show = () => {
    const chosen = rows.filter((row) => row.cells[0].querySelector("input").checked), several = chosen.length > 1;
    const left = new Set((chosen.length ? chosen : rows.filter((row) => !row.hidden)).map((row) => row.dataset.run));
    for (const line of lines) line.style.display = left.has(line.dataset.run) ? "" : "none";
    part("command").textContent = `podium compare ${chosen.map((row) => row.dataset.word).join(" ")}`;
    part("picked").hidden = !several;
    part("advice").hidden = several;
  };
  runs.addEventListener("change", show);
  document.addEventListener("filtered", show);
  part("none").addEventListener("click", () => {
    for (const row of rows) row.cells[0].querySelector("input").checked = false;
    show();
  });
  show();
}
