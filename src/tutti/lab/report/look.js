// Tables are sorted by the column whose header is chosen, and the other way round when it is chosen again.
// What is missing stays at the end; rows that are equal keep the order that they came in.
"use strict";

function sortBy(table, column) {
  const headers = [...table.tHead.rows[0].cells];
  const direction = headers[column].getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  headers.forEach((header, index) => {
    if (index === column) header.setAttribute("aria-sort", direction);
    else header.removeAttribute("aria-sort");
  });
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const order = compare(a.cells[column], b.cells[column], direction === "ascending" ? 1 : -1);
    return order || a.dataset.place - b.dataset.place;
  });
  table.tBodies[0].append(...rows);
}

function compare(a, b, sign) {
  if ("value" in a.dataset) {
    const [x, y] = [a.dataset.value, b.dataset.value];
    if (x === "" || y === "") return (x === "") - (y === "");
    return sign * (Number(x) - Number(y));
  }
  return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

for (const table of document.querySelectorAll("table")) {
  [...table.tBodies[0].rows].forEach((row, place) => (row.dataset.place = place));
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sortBy(table, column));
  });
}
