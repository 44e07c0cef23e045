"use strict";

const root = document.documentElement;
const theme = document.getElementById("theme");
const system = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
system.addEventListener("change", nameTheme);
nameTheme();
theme.hidden = false;

const save = document.getElementById("save");
if (save) {
  save.addEventListener("click", () => {
    const link = document.createElement("a");
    const content = document.getElementById("numbers").textContent;
    link.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
    link.download = "numbers.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  save.hidden = false;
}

const key = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
};
const compare = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};

/* Numbers start with the highest, names with the first; what was not measured stays at the end. */
const sort = (header) => {
  const column = header.cellIndex;
  const body = header.closest("table").tBodies[0];
  const first = header.classList.contains("number") ? "descending" : "ascending";
  const other = first === "ascending" ? "descending" : "ascending";
  const order = header.getAttribute("aria-sort") === first ? other : first;
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].map((row) => [key(row, column), row]);
  const numeric = rows.some(([value]) => typeof value === "number");
  const missing = ([value]) => numeric && typeof value !== "number";
  rows.sort((a, b) => missing(a) - missing(b) || sign * compare(a[0], b[0]));
  for (const cell of header.parentNode.cells) cell.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", order);
  body.append(...rows.map(([, row]) => row));
};
for (const button of document.querySelectorAll("th > button")) {
  button.addEventListener("click", () => sort(button.parentNode));
}
