"use strict";
(() => {
  const AGAIN_MS = 2000, TYPING_MS = 250;
  const byId = id => document.getElementById(id);
  let stream = null, again = 0, typing = 0, sought = "";

  const made = html => {
    const box = document.createElement("template");
    box.innerHTML = html;  // escaped where it was made
    return box.content.firstElementChild;
  };
  // Makes one element equal to another, and leaves alone what is: the focus, what is selected, where it was scrolled to.
  const change = (node, next) => {
    if (node.isEqualNode(next)) return;
    if (node.nodeName !== next.nodeName) { node.replaceWith(next); return; }
    if (node.nodeType === Node.TEXT_NODE) { node.data = next.data; return; }
    for (const {name} of [...node.attributes]) if (!next.hasAttribute(name)) node.removeAttribute(name);
    for (const {name, value} of next.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    const wanted = [...next.childNodes];
    wanted.forEach((child, n) => n < node.childNodes.length ? change(node.childNodes[n], child) : node.append(child));
    while (node.childNodes.length > wanted.length) node.lastChild.remove();
  };

  const show = ({title, parts, rows}) => {
    const log = byId("log"), follows = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    const fresh = {}, focus = document.activeElement;
    for (const [id, html] of Object.entries(parts)) {
      const next = made(html), known = byId(id);
      if (known) change(known, next); else fresh[id] = next;
    }
    if (rows) byId("rows").replaceChildren(...rows.map(id => byId(id) || fresh[id]).filter(Boolean));
    if (focus !== document.activeElement && focus.isConnected) focus.focus({preventScroll: true});
    if (follows && byId("log")) byId("log").scrollTop = byId("log").scrollHeight;
    byId("main").classList.toggle("two", !byId("job").hidden);
    document.title = title;
    if (sought && byId(sought) && !byId(sought).hidden) byId(sought).scrollIntoView({block: "nearest"});
    sought = "";
  };

  const say = (text, isLost) => { byId("link").textContent = text; byId("link").className = isLost ? "lost" : ""; };
  const close = () => { clearTimeout(again); if (stream) stream.close(); stream = null; };
  const open = () => {
    close();
    if (document.hidden) return;  // nothing is read for a page that nobody sees
    stream = new EventSource("events" + location.search);
    stream.onmessage = event => { show(JSON.parse(event.data)); say("live", false); };
    stream.addEventListener("trouble", event => say(JSON.parse(event.data), true));
    stream.onerror = () => { close(); say("not connected; trying again", true); again = setTimeout(open, AGAIN_MS); };
  };

  const go = (query, isStep) => {
    const address = query === "?" ? location.pathname : query;
    history[isStep ? "pushState" : "replaceState"](null, "", address);
    byId("text").value = document.activeElement === byId("text") ? byId("text").value : wish().get("text") || "";
    open();
  };
  const wish = () => new URLSearchParams(location.search);
  const filter = () => {
    const fields = wish(), text = byId("text").value.trim();
    fields.delete("rows");
    if (text) fields.set("text", text); else fields.delete("text");
    go("?" + fields, false);
  };

  document.addEventListener("click", event => {
    const row = event.target.closest("#rows tr"), link = event.target.closest("a") || (row && row.querySelector("a"));
    const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.button) && !String(getSelection());
    if (!link || !isPlain || !link.getAttribute("href").startsWith("?")) return;
    event.preventDefault();
    if (row) sought = "job";
    if (link.closest("#job")) sought = "j" + wish().get("job");  // back to where it was found
    go(link.getAttribute("href"), true);
  });
  byId("text").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(filter, TYPING_MS); });
  byId("filter").addEventListener("submit", event => { event.preventDefault(); filter(); });
  document.addEventListener("keydown", event => {
    const text = byId("text"), step = {ArrowDown: 1, j: 1, ArrowUp: -1, k: -1}[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === text) {
      if (event.key !== "Escape") return;
      text.value = "";
      text.blur();
      filter();
    } else if (event.key === "/") {
      event.preventDefault();
      text.focus();
    } else if (event.key === "Escape" && !byId("job").hidden) {
      byId("job").querySelector("h2 a").click();
    } else if (step && event.target !== byId("log")) {
      const links = [...document.querySelectorAll("#rows tr td:first-child a")], n = links.indexOf(document.activeElement);
      const next = links[n < 0 ? 0 : n + step];
      if (next && (n >= 0 || event.key === "j")) { event.preventDefault(); next.focus(); }
    }
  });
  window.addEventListener("popstate", () => { byId("text").value = wish().get("text") || ""; open(); });
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  window.addEventListener("pageshow", event => { if (event.persisted) open(); });
  open();
})();
