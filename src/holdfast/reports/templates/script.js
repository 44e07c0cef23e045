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

/* On a phone every row of a wide table becomes a card; the head of its column names each number. */
const phone = window.matchMedia("(max-width: 40rem)");
const asCards = (table) => {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  if (heads.length < 3 || table.classList.contains("cards")) return;
  /* display: block would take the table's meaning away from those who hear it */
  table.setAttribute("role", "table");
  for (const row of table.rows) {
    row.setAttribute("role", "row");
    for (const cell of row.cells) {
      const inHead = row.parentNode === table.tHead;
      cell.setAttribute("role", inHead ? "columnheader" : cell.tagName === "TH" ? "rowheader" : "cell");
      if (cell.tagName === "TD") cell.dataset.head = heads[cell.cellIndex];
    }
  }
  for (const part of [table.tHead, ...table.tBodies]) part.setAttribute("role", "rowgroup");
  table.classList.add("cards");
};
const visibleCards = (within) => {
  if (!phone.matches) return;
  for (const table of within.querySelectorAll("table")) {
    if (!table.closest("details:not([open])")) asCards(table);
  }
};
phone.addEventListener("change", () => visibleCards(document));
for (const details of document.querySelectorAll("details")) {
  details.addEventListener("toggle", () => visibleCards(details));
}
visibleCards(document);

/* The section that is being read is marked in the navigation. */
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.getAttribute("href").slice(1), a]));
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const a of links.values()) a.removeAttribute("aria-current");
    const here = links.get(entry.target.id);
    if (!here) continue;
    here.setAttribute("aria-current", "true");
    const bar = here.parentNode;
    bar.scrollLeft = here.offsetLeft - bar.offsetLeft - bar.clientWidth / 2;
  }
}, { rootMargin: "-10% 0px -80% 0px" });
for (const section of document.querySelectorAll("main > section")) seen.observe(section);

/* A click on a name in a legend hides its line, so that eight of them stay readable. */
for (const item of document.querySelectorAll(".legend li")) {
  const figure = item.closest("figure");
  const own = [...item.classList];
  const drawn = [...figure.querySelectorAll("svg .line, svg .dot, svg .bar")].filter((e) => {
    const kinds = ["dashed", "hollow"];
    return e.classList.contains(own[0]) && kinds.some((k) => e.classList.contains(k)) === (own.length > 1);
  });
  if (!drawn.length) continue;
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.append(...item.childNodes);
  item.append(button);
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!shown));
    for (const e of drawn) e.classList.toggle("off", shown);
  });
}

/* Pictures are enlarged in a dialog. */
const dialog = document.createElement("dialog");
const large = document.createElement("img");
const words = document.createElement("p");
const close = document.createElement("button");
close.type = "button";
close.textContent = "Close";
close.addEventListener("click", () => dialog.close());
dialog.setAttribute("aria-label", "Picture");
dialog.append(large, words, close);
document.body.append(dialog);
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
for (const image of document.querySelectorAll(".gallery:not(.wide) img")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "enlarge";
  image.replaceWith(button);
  button.append(image);
  button.addEventListener("click", () => {
    large.src = image.src;
    large.alt = image.alt;
    words.textContent = image.alt;
    dialog.showModal();
  });
}

/* Samples are filtered by what is known of them; sets of choices come from the pictures themselves. */
const KINDS = [["label", "class"], ["group", "group"], ["prediction", "prediction"], ["verdict", "verdict"]];
for (const gallery of document.querySelectorAll(".gallery")) {
  const items = [...gallery.querySelectorAll("li[data-verdict]")];
  if (items.length < 2) continue;
  const bar = document.createElement("div");
  bar.className = "filters";
  const count = document.createElement("output");
  const selects = [];
  const add = (name, options) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.append(...options.map(([value, text]) => new Option(text, value)));
    label.append(`${name} `, select);
    bar.append(label);
    return select;
  };
  for (const [key, name] of KINDS) {
    const values = [...new Set(items.map((e) => e.dataset[key]).filter((v) => v))];
    if (values.length < 2) continue;
    values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    selects.push([key, add(name, [["", "all"], ...values.map((v) => [v, v])])]);
  }
  const sure = add("confidence", [["0", "any"], ["0.5", "50 % and more"], ["0.9", "90 % and more"], ["0.99", "99 % and more"]]);
  const show = () => {
    let shown = 0;
    for (const e of items) {
      const fits = selects.every(([key, s]) => !s.value || e.dataset[key] === s.value);
      e.hidden = !(fits && Number(e.dataset.confidence || 0) >= Number(sure.value));
      shown += !e.hidden;
    }
    count.textContent = `${shown} of ${items.length}`;
  };
  bar.append(count);
  bar.addEventListener("change", show);
  gallery.querySelector("h3").after(bar);
  show();
}
