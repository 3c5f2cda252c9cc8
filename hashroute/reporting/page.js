"use strict";
const values = JSON.parse(document.getElementById("values").textContent);
const root = document.documentElement;
const tip = document.getElementById("tip");

document.getElementById("theme").addEventListener("click", () => {
  const dark = getComputedStyle(root).colorScheme === "dark";
  root.dataset.theme = dark ? "light" : "dark";
});

// Show or hide a learner: its curves, bands, points, panels, rows and samples.
for (const button of document.querySelectorAll(".learners button")) {
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(on));
    for (const part of button.closest("section").querySelectorAll("[data-learner]")) {
      if (part.dataset.learner === button.dataset.name) part.classList.toggle("off", !on);
    }
  });
}

// Sort a table by the column whose header is clicked: numbers from the highest, words from a; a second click reverses.
const sortKey = (row, column) => row.cells[column].dataset.number ?? row.cells[column].textContent;
for (const header of document.querySelectorAll("th")) {
  header.addEventListener("click", () => {
    const column = header.cellIndex;
    const body = header.closest("table").tBodies[0];
    const rows = [...body.rows];
    const numbers = rows.some((row) => row.cells[column].dataset.number !== undefined);
    const before = header.getAttribute("aria-sort");
    const up = before ? before === "descending" : !numbers;
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const sign = up ? 1 : -1;
    rows.sort((one, other) => {
      if (!numbers) return sign * sortKey(one, column).localeCompare(sortKey(other, column));
      const [a, b] = [one, other].map((row) => Number(row.cells[column].dataset.number ?? NaN));
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return sign * (a - b);
    });
    body.append(...rows);
  });
}

// Copy a table as it stands, or a command.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const source = button.closest(".table, .command").querySelector("table, pre");
    const lines = source.rows
      ? [...source.rows].filter((row) => !row.classList.contains("off"))
          .map((row) => [...row.cells].map((cell) => cell.textContent.trim()).join("\t"))
      : [source.textContent];
    await copy(lines.join("\n"));
    const label = button.textContent;
    button.textContent = "copied";
    setTimeout(() => { button.textContent = label; }, 1200);
  });
}

// The tip beside the pointer.
function say(text, x, y) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y > tip.offsetHeight + 20 ? y - tip.offsetHeight - 10 : y + 18}px`;
}
for (const part of document.querySelectorAll("[data-tip]")) {
  const show = (event) => say(part.dataset.tip, event.clientX, event.clientY);
  part.addEventListener("pointerenter", show);
  part.addEventListener("pointerdown", show);
  part.addEventListener("pointerleave", () => say(""));
  part.addEventListener("focus", () => {
    const box = part.getBoundingClientRect();
    if (part.matches(":focus-visible")) say(part.dataset.tip, box.left, box.top);
  });
  part.addEventListener("blur", () => say(""));
}

// What is under the pointer in a figure: a cell of a heat map, the nearest markers, or a line or bar.
const number = (value) => (value === null ? "–" : Math.abs(value) >= 1000 ? value.toFixed(0) : value.toFixed(2));
function text(part, label, value) {
  const what = value === undefined || value === null && !part.rows ? label : `${label}: ${number(value)}`;
  return part.learner ? `${part.learner}, ${what}` : what;
}
function found(svg, x, y) {
  const near = [];
  for (const group of svg.querySelectorAll("[data-part]:not(.off)")) {
    const part = values[group.id];
    if (part.rows) {
      const box = group.querySelector("image")?.getBoundingClientRect();
      if (!box || x < box.left || x >= box.right || y < box.top || y >= box.bottom) continue;
      const row = Math.floor((y - box.top) / box.height * part.rows.length);
      const column = Math.floor((x - box.left) / box.width * part.columns.length);
      return text(part, `${part.rows[row]}, ${part.columns[column]}`, part.values[row][column]);
    }
    group.querySelectorAll("use").forEach((mark, place) => {
      const box = mark.getBoundingClientRect();
      const far = Math.hypot(x - (box.left + box.right) / 2, y - (box.top + box.bottom) / 2);
      if (far < 16) near.push([far, text(part, part.labels[place], part.values[place])]);
    });
  }
  near.sort((one, other) => one[0] - other[0]);
  if (near.length) return near.filter(([far]) => far < near[0][0] + 3).map(([, words]) => words).join("\n");
  const path = document.elementFromPoint(x, y)?.closest("path");
  const group = path?.closest("[data-part]");
  if (!group || !values[group.id].labels) return null;
  const place = [...group.querySelectorAll("path")].indexOf(path);
  const part = values[group.id];
  return place < part.labels.length && !group.querySelector("use") ? text(part, part.labels[place], part.values[place]) : null;
}
for (const svg of document.querySelectorAll("figure svg")) {
  const show = (event) => say(found(svg, event.clientX, event.clientY), event.clientX, event.clientY);
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => say(""));
}
