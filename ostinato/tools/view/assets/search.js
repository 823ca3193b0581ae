// Search: nodes of the entry whose name, operator, row, type or source line has every word of the query. Arrows and Enter choose, Escape clears.
"use strict";

(() => {
  const MOST = 60;
  const haystacks = new WeakMap();
  let field, list, found = [], at = 0;

  function texts(graph) {
    if (!haystacks.has(graph)) {
      haystacks.set(graph, graph.nodes.map((node) => [node.name, node.op, node.row, ...node.types, ...node.makes.slice(1), node.line].join("\n").toLowerCase()));
    }
    return haystacks.get(graph);
  }

  function look() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const graph = ostinato.graph(ostinato.bus.entry());
    const lines = texts(graph);
    found = words.length ? graph.nodes.filter((node) => words.every((word) => lines[node.index].includes(word))) : [];
    at = 0;
    ostinato.bus.emit("search", words.length ? new Set(found.map((node) => node.name)) : null);
    list.hidden = !words.length;
    const { element } = ostinato;
    const total = found.length ? `${ostinato.count(found.length)} of ${ostinato.count(graph.nodes.length)} nodes` : "no node has all of these words";
    list.replaceChildren(element("div.total", {}, total + (found.length > MOST ? `, the first ${MOST} listed` : "")), ...found.slice(0, MOST).map((node, place) => element("div.result", { role: "option", onpointerdown: (event) => { event.preventDefault(); choose(place); } },
      element("span.swatch", { style: `background: var(--op-${ostinato.family(node.op)})` }), element("span.mono", {}, node.name),
      element("div.soft", {}, `${node.op} · ${node.types[0]}${node.line ? ` · ${node.line}` : ""}`))));
    mark();
  }

  function mark() {
    [...list.querySelectorAll(".result")].forEach((line, place) => {
      line.setAttribute("aria-selected", String(place === at));
      if (place === at) line.scrollIntoView({ block: "nearest" });
    });
  }

  function choose(place) {
    if (!found[place]) return;
    at = place;
    mark();
    list.hidden = true;
    ostinato.bus.select({ node: found[place].name });
  }

  ostinato.bus.on("start", ({ search }) => {
    field = ostinato.element("input", { type: "search", placeholder: "Search name, operator, dtype, line   /", "aria-label": "Search" });
    list = ostinato.element("div.results", { hidden: true, role: "listbox" });
    search.append(field, list);
    field.addEventListener("input", look);
    field.addEventListener("focus", () => field.value && look());
    field.addEventListener("blur", () => (list.hidden = true));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") choose(at);
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        at = Math.max(0, Math.min(Math.min(found.length, MOST) - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
        list.hidden = false;
        mark();
        event.preventDefault();
      }
    });
  });
  ostinato.bus.on("escape", () => {
    field.value = "";
    look();
  });
  ostinato.bus.on("entry", () => field && field.value && look());
})();
