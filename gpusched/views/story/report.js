"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = id => document.getElementById(id);
  const make = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const clock = s => {
    if (s === null) return "";
    if (s < 60) return s.toFixed(1) + " s";
    const m = Math.floor(s / 60), h = Math.floor(m / 60), two = n => String(Math.floor(n)).padStart(2, "0");
    return h ? h + ":" + two(m % 60) + ":" + two(s % 60) : m + ":" + two(s % 60);
  };
  const at = t => t === null ? "" : new Date(t * 1000).toLocaleString();
  const percent = v => v === null || v === undefined ? "" : Math.round(v * 100) + "%";
  // heading, place in the row of data, how it is shown, if it is a number
  const columns = [
    ["Job", 0, null, true], ["State", 1], ["Name", 2], ["Command", 3], ["Tags", 4], ["GPU", 5],
    ["Tries", 6, null, true], ["Waited", 7, clock, true], ["Started", 8, at], ["Ran", 9, clock, true],
    ["MiB", 10, null, true], ["Use", 11, percent, true], ["Idle", 12, percent, true],
    ["kJ", 13, v => v === null ? "" : (v / 1000).toFixed(1), true], ["How", 14],
  ].filter(([, n]) => data.jobs.some(job => job[n] !== "" && job[n] !== null));
  const CHUNK = 200, ATTEMPTS = 15;
  const body = byId("table").tBodies[0];
  let rows = data.jobs, shown = 0, sorted = 0, down = false;

  const draw = number => {
    const part = document.createDocumentFragment();
    for (const job of rows.slice(shown, shown + number)) {
      const row = make("tr");
      row.tabIndex = 0;
      for (const [, n, show, isNumber] of columns) {
        row.append(make("td", show ? show(job[n]) : job[n], isNumber ? "n" : n === 1 ? "s-" + job[1] : n === 3 || n === 14 ? "wide" : ""));
      }
      row.addEventListener("click", () => open(row, job));
      row.addEventListener("keydown", event => {
        if (event.key === "Enter") open(row, job);
        const next = {ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling}[event.key];
        if (next) { event.preventDefault(); next.focus(); }
      });
      part.append(row);
    }
    shown = Math.min(rows.length, shown + number);
    body.append(part);
    byId("more").textContent = shown < rows.length ? (rows.length - shown) + " more below" : "";
    byId("count").textContent = rows.length + " of " + data.jobs.length + " jobs";
  };

  const update = () => {
    const text = byId("text").value.toLowerCase(), state = byId("state").value;
    rows = data.jobs.filter(job => (!state || job[1] === state) &&
      (!text || (job[0] + " " + job[2] + " " + job[3] + " " + job[4] + " " + job[14]).toLowerCase().includes(text)));
    if (sorted !== null) {
      const sign = down ? -1 : 1, empty = v => v === null || v === "";
      rows.sort((a, b) => {
        const x = a[sorted], y = b[sorted];
        if (empty(x) || empty(y)) return empty(x) - empty(y);
        return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), undefined, {numeric: true}));
      });
    }
    body.replaceChildren();
    shown = 0;
    draw(CHUNK);
  };

  const svg = (tag, fields) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(fields)) made.setAttribute(name, value);
    return made;
  };
  const curve = points => {
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    const most = Math.max(1, ...points.map(p => p[2]));
    const line = (n, whole) => points.map(
      p => (600 * (p[0] - first) / Math.max(1, last - first)).toFixed(1) + "," + (60 * (1 - p[n] / whole)).toFixed(1)).join(" ");
    const box = svg("svg", {viewBox: "0 0 600 62", role: "img"});
    box.append(svg("polyline", {points: line(2, most), class: "memory"}), svg("polyline", {points: line(3, 100), class: "use"}));
    const text = make("p", "", "legend");
    text.append(make("b", "memory", "memory"), ", at most " + most + " MiB; ", make("b", "utilisation", "use"), " of its GPU");
    return [text, box];
  };
  const open = (row, job) => {
    if (row.nextElementSibling && row.nextElementSibling.dataset.of) { row.nextElementSibling.remove(); return; }
    const detail = make("tr"), cell = make("td");
    detail.dataset.of = job[0];
    cell.colSpan = columns.length;
    cell.append(make("pre", job[3]));
    for (const [number, began, ended, where, how, log] of job[ATTEMPTS]) {
      cell.append(make("div", "attempt " + number + " on " + where + ": " + at(began) + (ended === null ? ", runs" :
        ", " + clock(ended - began)) + (how ? ", " + how : "") + (log ? "  " + log : "")));
    }
    const points = data.curves[job[0]] || [];  // seconds, place of the GPU in data.gpus, MiB, per cent
    for (const gpu of new Set(points.map(p => p[1]))) {
      const own = points.filter(p => p[1] === gpu);
      if (own.length > 1) cell.append(make("div", data.gpus[gpu]), ...curve(own));
    }
    detail.append(cell);
    row.after(detail);
  };

  for (const [name, n, , isNumber] of columns) {
    const head = make("th", null, isNumber ? "n" : ""), button = make("button", name);
    head.scope = "col";
    button.type = "button";
    button.addEventListener("click", () => {
      down = sorted === n && !down;
      sorted = n;
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      update();
    });
    head.append(button);
    byId("table").tHead.rows[0].append(head);
  }
  for (const state of new Set(data.jobs.map(job => job[1]))) byId("state").append(make("option", state));
  byId("text").addEventListener("input", update);
  byId("state").addEventListener("change", update);
  byId("filter").addEventListener("submit", event => event.preventDefault());
  document.addEventListener("keydown", event => {
    if (event.key === "/" && event.target !== byId("text")) { event.preventDefault(); byId("text").focus(); }
    if (event.key === "Escape" && event.target === byId("text")) { byId("text").value = ""; update(); }
  });
  new IntersectionObserver(seen => {
    if (seen[0].isIntersecting && shown < rows.length) draw(CHUNK);
  }, {rootMargin: "600px"}).observe(byId("more"));
  window.addEventListener("beforeprint", () => draw(2000));
  update();
})();
