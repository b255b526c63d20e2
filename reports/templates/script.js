// The page is complete without this: it sorts tables, and opens or closes what is folded.
"use strict";

function figure(text) {
  const number = text.replace(/,/g, "").match(/^[−-]?\d+(\.\d+)?/);
  return number ? parseFloat(number[0].replace("−", "-")) : null;
}

function compare(a, b) {
  const [x, y] = [figure(a), figure(b)];
  if (x !== null && y !== null) return x - y;
  if (x !== null || y !== null) return x !== null ? -1 : 1;
  return a.localeCompare(b, "en");
}

function sort(table, column, heading) {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(a.cells[column].textContent.trim(), b.cells[column].textContent.trim()) * (up ? 1 : -1));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(table, column, heading));
    heading.append(button);
  });
}

const folds = document.querySelectorAll("details");
const toggle = document.getElementById("open-all");
toggle.hidden = folds.length === 0;
toggle.addEventListener("click", () => {
  const opening = [...folds].some((fold) => !fold.open);
  for (const fold of folds) fold.open = opening;
  toggle.textContent = opening ? "Close all tables" : "Open all tables";
});

function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  const fold = target && target.closest("details");
  if (fold) fold.open = true;
}
addEventListener("hashchange", reveal);
reveal();
