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
const enlarges = (image) => {
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
};
for (const image of document.querySelectorAll(".gallery:not(.wide) img")) enlarges(image);

/* Samples are filtered by what is known of them: the pictures in the page first, then the answers to all others. */
const KINDS = [["label", "class"], ["group", "group"], ["prediction", "prediction"], ["verdict", "verdict"]];
const SURE = [["0 1", "any"], ["0 0.5", "under 50 %"], ["0.5 1", "50 % and more"], ["0.9 1", "90 % and more"], ["0.99 1", "99 % and more"]];
const STEP = 48;
const readAnswers = (gallery) => {
  const script = gallery.querySelector("script.answers");
  if (!script) return null;
  const data = JSON.parse(script.textContent);
  const place = new Map((data.sheet ? data.sheet.places : []).map((own, k) => [own, k]));
  const position = (i) => (data.positions ? data.positions[i] : i);
  const sure = (i) => (data.confidence ? data.confidence[i] / 1000 : 0);
  const wrong = (i) => data.label[i] !== data.prediction[i];
  const facts = {
    label: (i) => data.classes[data.label[i]],
    prediction: (i) => data.classes[data.prediction[i]],
    group: (i) => (data.group && data.group[i] >= 0 ? data.groups[data.group[i]] : ""),
    verdict: (i) => (wrong(i) ? "wrong" : "right"),
  };
  const every = data.label.map((_, i) => i);
  /* those with a picture first, mistakes before hits, the surest before others */
  const rank = (i) => (place.has(i) ? 0 : 4) + (wrong(i) ? 0 : 2) - sure(i);
  every.sort((a, b) => rank(a) - rank(b));
  return { data, place, position, sure, wrong, facts, every };
};
const sheets = new Map();
const cropped = (sheet, k) => {
  let image = sheets.get(sheet);
  if (!image) {
    image = new Image();
    image.src = sheet.source;
    sheets.set(sheet, image);
  }
  const made = document.createElement("img");
  const draw = () => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = sheet.side;
    const x = (k % sheet.columns) * sheet.side, y = Math.floor(k / sheet.columns) * sheet.side;
    canvas.getContext("2d").drawImage(image, x, y, sheet.side, sheet.side, 0, 0, sheet.side, sheet.side);
    made.src = canvas.toDataURL();
  };
  if (image.complete) draw(); else image.addEventListener("load", draw);
  return made;
};
const sampleItem = (answers, i) => {
  const { data, place, position, sure, wrong, facts } = answers;
  const item = document.createElement("li");
  const title = document.createElement("span");
  const detail = document.createElement("small");
  title.textContent = wrong(i) ? `${facts.label(i)} → ${facts.prediction(i)}` : facts.label(i);
  item.className = wrong(i) ? "more wrong" : "more";
  const known = [data.confidence ? `${(100 * sure(i)).toFixed(1)} % sure` : "", facts.group(i) && `${data.word} ${facts.group(i)}`];
  detail.textContent = [...known, `sample ${position(i)}`, place.has(i) ? "" : "no picture here"].filter((t) => t).join(", ");
  if (place.has(i)) {
    const image = cropped(data.sheet, place.get(i));
    image.width = image.height = 96;
    image.alt = `${facts.label(i)}, ${wrong(i) ? `taken for ${facts.prediction(i)}` : "recognised"}; ${detail.textContent}`;
    image.title = image.alt;
    item.append(image);
    enlarges(image);
  }
  item.append(title, detail);
  return item;
};
for (const gallery of document.querySelectorAll(".gallery")) {
  const items = [...gallery.querySelectorAll("li[data-verdict]")];
  const answers = readAnswers(gallery);
  if (items.length < 2 && !answers) continue;
  const list = gallery.querySelector("ul");
  const shownAlready = new Set(items.map((e) => Number(e.dataset.position)));
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
    const own = answers ? answers.every.map(answers.facts[key]) : items.map((e) => e.dataset[key]);
    const values = [...new Set(own.filter((v) => v))];
    if (values.length < 2) continue;
    values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const word = key === "group" && answers ? answers.data.word : name;
    selects.push([key, add(word, [["", "all"], ...values.map((v) => [v, v])])]);
  }
  const sure = add("confidence", SURE);
  const more = document.createElement("button");
  more.type = "button";
  more.className = "more";
  let limit = 0;
  const show = () => {
    const [low, high] = sure.value.split(" ").map(Number);
    const within = (c) => c >= low && (c < high || high === 1);
    let shown = 0;
    for (const e of items) {
      const fits = selects.every(([key, s]) => !s.value || e.dataset[key] === s.value);
      e.hidden = !(fits && within(Number(e.dataset.confidence || 0)));
      shown += !e.hidden;
    }
    for (const e of list.querySelectorAll("li.more")) e.remove();
    if (!answers) {
      count.textContent = `${shown} of ${items.length}`;
      return;
    }
    const fitting = answers.every.filter((i) =>
      within(answers.sure(i)) && selects.every(([key, s]) => !s.value || answers.facts[key](i) === s.value));
    const rest = fitting.filter((i) => !shownAlready.has(answers.position(i)));
    list.append(...rest.slice(0, limit).map((i) => sampleItem(answers, i)));
    const total = answers.data.label.length;
    const of = answers.data.of > total ? `, drawn from ${answers.data.of.toLocaleString("en")}` : "";
    count.textContent = `${fitting.length.toLocaleString("en")} of ${total.toLocaleString("en")} samples${of}`;
    more.hidden = rest.length <= limit;
    more.textContent = `Show ${Math.min(STEP, rest.length - limit)} more`;
  };
  bar.append(count);
  bar.addEventListener("change", () => {
    limit = answers && (sure.value !== SURE[0][0] || selects.some(([, s]) => s.value)) ? STEP : 0;
    show();
  });
  more.addEventListener("click", () => { limit += STEP; show(); });
  gallery.querySelector("h3").after(bar);
  if (answers) list.after(more);
  show();
}
