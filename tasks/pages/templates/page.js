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
// Curves in .zooms: drag across a part to enlarge it, double-click or press 0 to reset; + and - zoom by keys; a slider
// smooths lines by an exponential moving average. Without this script the plot shows everything.
const SVG = "http://www.w3.org/2000/svg";
const make = (name, attributes, parent) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return parent.appendChild(element);
};
const ticks = (low, high, most) => {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((part) => part * power).find((one) => one >= raw);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
};
for (const plot of document.querySelectorAll(".zooms svg[data-range]")) {
  const [x0, y0, x1, y1] = plot.dataset.range.split(" ").map(Number), [left, bottom, right, top] = plot.dataset.box.split(" ").map(Number);
  const area = plot.querySelector("g.plot"), toX = (px) => x0 + ((px - left) / (right - left)) * (x1 - x0);
  const toY = (py) => y0 + ((py - bottom) / (top - bottom)) * (y1 - y0);
  const points = (path) => path.getAttribute("d").slice(1).split("L").map((part) => part.split(" ").map(Number)).map(([x, y]) => [toX(x), toY(y)]);
  const lines = [...area.querySelectorAll(".series path.line")].map((path) => ({ path, points: points(path) }));
  const dots = [...area.querySelectorAll(".dot")].map((dot) => ({ dot, x: toX(Number(dot.getAttribute("cx"))), y: toY(Number(dot.getAttribute("cy"))) }));
  const axes = ["x", "y"].map((name) => area.querySelector(`.axis.${name}`)), before = axes.map((axis) => [...axis.children]);
  const titles = plot.querySelectorAll("text.title"), height = Number(area.querySelector("rect.background").getAttribute("height"));
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  make("rect", { x: left, y: 0, width: right - left, height }, make("clipPath", { id: clip }, plot));
  for (const one of lines) {
    one.path.setAttribute("clip-path", `url(#${clip})`);
    one.raw = one.path.cloneNode();  // shown under a smoothed line
    one.raw.setAttribute("class", "line raw");
    one.raw.setAttribute("d", "");
    one.path.before(one.raw);
  }
  let [from, to] = [x0, x1], weight = 0;
  const toPixel = (x) => left + ((x - from) / (to - from)) * (right - left), under = axes[0].querySelector("text")?.getAttribute("y");
  const smooth = (line) => {
    let mean = line[0][1];
    return line.map(([x, y]) => [x, (mean = weight * mean + (1 - weight) * y)]);
  };
  const draw = () => {
    const whole = from === x0 && to === x1, inside = ({ x }) => x >= from && x <= to;
    const seen = [...lines.flatMap((one) => one.points.map(([x, y]) => ({ x, y }))), ...dots].filter(inside).map(({ y }) => y);
    const low = whole ? y0 : Math.min(...seen), high = whole ? y1 : Math.max(...seen), span = high - low || 1;
    const floor = whole ? bottom : height - 8;
    const px = toPixel, py = (y) => floor + ((y - low) / span) * (top - floor);
    const d = (line) => "M" + line.map(([x, y]) => `${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("L");
    for (const one of lines) {
      one.raw.setAttribute("d", weight ? d(one.points) : "");
      one.path.setAttribute("d", d(smooth(one.points)));
    }
    for (const one of dots) {
      one.dot.setAttribute("cx", px(one.x));
      one.dot.setAttribute("cy", py(one.y));
      one.dot.classList.toggle("outside", !inside(one));
    }
    axes.forEach((axis, index) => {
      axis.replaceChildren(...before[index].filter((child) => whole || !child.classList.contains("guides")));
      if (whole) return;
      for (const value of index ? ticks(low, low + span, 5) : ticks(from, to, 5)) {
        const group = make("g", { class: "guides" }, axis), y = py(value);
        if (index) make("path", { d: `M0 ${y} H${right + left}`, class: "guide line" }, group);
        make("text", index ? { x: -5, y: y + 4 } : { x: px(value), y: under }, group).textContent = value.toLocaleString("en", { maximumSignificantDigits: 4 });
      }
    });
    titles[1]?.toggleAttribute("hidden", !whole);  // labels of ticks may need its room
    reset.disabled = whole;
  };
  const zoom = (low, high) => {
    [from, to] = [Math.max(x0, low), Math.min(x1, high)];
    if (!lines.some((one) => one.points.filter(([x]) => x >= from && x <= to).length > 1)) [from, to] = [x0, x1];
    draw();
  };
  const scale = (factor) => {
    const near = dots.find((one) => one.dot.classList.contains("near")), at = near ? near.x : (from + to) / 2;
    if (to - from > factor * (x1 - x0) / 1000) zoom(at - ((at - from) * factor), at + (to - at) * factor);
  };
  const tools = document.createElement("p");
  tools.className = "tools";
  const button = (text, name, act) => {
    const made = document.createElement("button");
    made.textContent = text;
    made.setAttribute("aria-label", name);
    made.addEventListener("click", act);
    tools.append(made);
    return made;
  };
  const title = plot.getAttribute("aria-label");
  button("+", `zoom in: ${title}`, () => scale(0.5));
  button("−", `zoom out: ${title}`, () => scale(2));
  const reset = button("Reset", `reset zoom: ${title}`, () => zoom(x0, x1));
  plot.parentElement.append(tools);
  plot.addEventListener("keydown", ({ key }) => ({ "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), 0: () => zoom(x0, x1) })[key]?.());
  plot.addEventListener("dblclick", () => zoom(x0, x1));
  const place = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(area.getScreenCTM().inverse()).x;
    return from + ((Math.min(right, Math.max(left, at)) - left) / (right - left)) * (to - from);
  };
  let start = null, box = null;
  plot.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    start = place(event);
    plot.setPointerCapture(event.pointerId);
    box = make("rect", { class: "chosen", x: toPixel(start), y: 0, width: 0, height }, area);
  });
  plot.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const [low, high] = [start, place(event)].sort((a, b) => a - b);
    box.setAttribute("x", toPixel(low));
    box.setAttribute("width", toPixel(high) - toPixel(low));
  });
  const stop = (event) => {
    if (start === null) return;
    const [low, high] = [start, place(event)].sort((a, b) => a - b);
    box.remove();
    start = null;
    if (event.type === "pointerup" && toPixel(high) - toPixel(low) > 8) zoom(low, high);
  };
  plot.addEventListener("pointerup", stop);
  plot.addEventListener("pointercancel", stop);
  plot.addEventListener("smooth", (event) => {
    weight = event.detail;
    draw();
  });
  reset.disabled = true;
}
for (const slider of document.querySelectorAll("input[data-smooths]")) {
  const tools = slider.closest(".tools"), plots = document.getElementById(slider.dataset.smooths).querySelectorAll("svg[data-range]");
  const apply = () => {
    tools.querySelector("output").textContent = slider.value > 0 ? `${Math.round(100 * slider.value)} %` : "off";
    for (const plot of plots) plot.dispatchEvent(new CustomEvent("smooth", { detail: Number(slider.value) }));
  };
  slider.addEventListener("input", apply);
  tools.hidden = false;
  if (slider.value > 0) apply();  // browsers keep the value when they go back
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
// A page of a stage finds its run, its date, the pages of the run and of all runs, and its document from its own place.
const pages = "(?:(?:evaluation|measurements/export)/[^/]+/report|reports/validation/[^/]+)\\.html$";
const place = decodeURI(location.pathname).match(new RegExp(`^(.*?)(/runs/checkouts/[^/]+)?/(${pages})`));
for (const link of place ? document.querySelectorAll("[data-up]") : []) {
  const root = "../".repeat(place[3].split("/").length - 1);
  const up = link.dataset.up !== "reports/run.html" && place[2] ? root + "../../../" : root;
  link.href = up + link.dataset.up;
  link.hidden = false;
}
const written = new Date(document.lastModified).toLocaleDateString("en-GB", { dateStyle: "long" });
const facts = place ? { run: place[2]?.split("/").pop(), date: written } : {};
for (const fact of document.querySelectorAll("[data-fact]")) {
  fact.lastElementChild.textContent = facts[fact.dataset.fact] ?? "";
  fact.hidden = !facts[fact.dataset.fact];
}
// A row's details may follow it in a row of class "more".
const rowsOf = (table) => [...table.tBodies[0].rows].filter((row) => !row.classList.contains("more"));
const withDetails = (row) => (row.nextElementSibling?.classList.contains("more") ? [row, row.nextElementSibling] : [row]);
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
      const column = heads.indexOf(head), rows = rowsOf(table);
      const empty = (value) => value === "" || Number.isNaN(value);  // rows without a value come last in both orders
      rows.sort((one, other) => {
        const [a, b] = [valueOf(one, column), valueOf(other, column)];
        return empty(a) - empty(b) || (down ? compare(b, a) : compare(a, b));
      });
      table.tBodies[0].append(...rows.flatMap(withDetails));
    });
  }
}
for (const input of document.querySelectorAll("input.filter")) {
  const table = document.getElementById(input.dataset.table), status = document.getElementById(input.dataset.count);
  const rows = rowsOf(table).map((row) => [row, withDetails(row).map((one) => one.textContent).join(" ").toLowerCase()]);
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
  const rows = rowsOf(runs), lines = [...document.querySelectorAll("svg [data-run]")];
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
  runs.tBodies[0].addEventListener("click", (event) => {  // a click on a row opens its details
    const row = event.target.closest("tr:not(.more)"), details = row?.querySelector("details");
    if (details && !event.target.closest("a, label, summary") && getSelection().isCollapsed) details.open = !details.open;
  });
  // Columns that the reader chose, kept by name where the browser stores something for this page.
  const columns = part("columns"), kept = "podium.columns";
  let chosen = {};
  try { chosen = JSON.parse(localStorage.getItem(kept)) || {}; } catch { /* a browser without storage for files */ }
  const apply = (box) => {
    runs.classList.toggle(`off-${box.value}`, !box.checked);
    if (box.checked && !box.defaultChecked) for (const row of rows) row.cells[box.value - 1].dataset.name = box.parentElement.textContent;
  };
  for (const box of columns.querySelectorAll("input")) {
    const name = box.parentElement.textContent;
    box.checked = typeof chosen[name] === "boolean" ? chosen[name] : box.defaultChecked;
    apply(box);
    box.addEventListener("change", () => {
      apply(box);
      chosen[name] = box.checked;
      try { localStorage.setItem(kept, JSON.stringify(chosen)); } catch { /* as above */ }
    });
  }
  columns.hidden = false;
}
for (const time of document.querySelectorAll("time[data-age]")) {
  time.title = time.textContent;
  const age = () => {
    const seconds = Math.max(0, Date.now() / 1000 - time.dataset.age);
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => seconds >= size) || [0, ""];
    time.textContent = size ? `${Math.floor(seconds / size)} ${unit} ago` : "just now";
  };
  age();
  setInterval(age, 60_000);
}
