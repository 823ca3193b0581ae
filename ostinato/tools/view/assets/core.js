// The shell of the page: panels in two docks, the bus that ties them together, and what all of them share.
//
// ostinato.panel(id, {title, dock, available(data), render(element, data, bus)}): a tab. It is rendered when it is first shown.
// ostinato.detail(id, {title, order, render(entry, node) -> element or null}): a section of the inspector for the selected node.
// bus: entry() is the entry that is looked at, selection the node; select({entry, node}), hover({node}) and open(entry) change them;
//   on("select" | "hover" | "entry" | "search" | "theme" | "show" | "print", fn) hears of it. `node` is a node's name, `entry` an entry's name.
// Every text goes into the page as text, never as markup: names are whatever a program says.
"use strict";

const ostinato = (() => {
  const panels = new Map();
  const details = new Map();
  const listeners = new Map();
  const rendered = new Map();
  const docks = { upper: null, lower: null };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let data = null;
  let current = 0;
  let colours = new Map();
  let restoring = false;

  // --- elements and formats

  // element("div.row.wide", {title: "...", onclick: fn}, child, "text", ...)
  function element(kind, attributes = {}, ...children) {
    const [tag, ...classes] = kind.split(".");
    const made = document.createElement(tag || "div");
    if (classes.length) made.className = classes.join(" ");
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  const count = (number) => number.toLocaleString("en-US");

  function bytes(number) {
    if (number < 1024) return `${number} B`;
    let value = number;
    for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
      value /= 1024;
      if (value < 1024 || unit === "TiB") return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value)} ${unit}`;
    }
  }

  function seconds(number) {
    for (const [unit, scale] of [["s", 1], ["ms", 1e3], ["µs", 1e6]]) {
      const value = number * scale;
      if (value >= 1 || unit === "µs") return `${value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : Math.round(value)} ${unit}`;
    }
  }

  // --- colours: every operator has a family, every family a colour in either theme

  const FAMILIES = [
    ["workspace", /^#?workspace/],
    ["optimizer", /adamw|sgd|optimizer|clip|update|learning|advance_step/],
    ["loss", /loss|entropy/],
    ["attention", /attention|attend|softmax|qk|scores/],
    ["norm", /norm/],
    ["rotary", /rope|rotary/],
    ["cache", /cache|kv|advance|paged/],
    ["embedding", /embed/],
    ["linear", /linear|matmul|projection|product|gemm/],
    ["sample", /sample|argmax|penal|logit|top_|select_token|random|dropout/],
    ["move", /reshape|transpose|slice|concat|split|gather|copy|cast|expand|repeat|broadcast|view|pad|last_rows|take/],
    ["reduce", /sum|mean|max|min|reduce|count/],
    ["value", /^value$|^input$|^output$/],
  ];
  const families = new Map();

  function family(op) {
    if (!families.has(op)) families.set(op, (FAMILIES.find(([, pattern]) => pattern.test(op)) || ["math"])[0]);
    return families.get(op);
  }

  function css(name) {
    if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return colours.get(name);
  }

  const colour = (op) => css(`--op-${family(op)}`);

  // --- the bus

  const bus = {
    selection: null,
    entry: () => data.entries[current],
    on(event, listener) {
      if (!listeners.has(event)) listeners.set(event, []);
      listeners.get(event).push(listener);
    },
    emit(event, value) {
      for (const listener of listeners.get(event) || []) listener(value);
    },
    open(name) {
      if (enter(name)) remember(true);
    },
    select(chosen) {
      if (chosen && chosen.entry !== undefined) enter(chosen.entry);
      const before = bus.selection;
      const resolve = ostinato.resolver || ((entry, name) => name);
      bus.selection = chosen ? { ...chosen, node: resolve(bus.entry(), chosen.node), entry: bus.entry().name } : null;
      if ((before && before.node) === (bus.selection && bus.selection.node) && !(chosen && chosen.again)) return;
      bus.emit("select", bus.selection);
      remember(true);
    },
    hover(chosen) {
      bus.emit("hover", chosen);
    },
    show,
  };

  // Looks at another entry; says whether it is one.
  function enter(name) {
    const index = data.entries.findIndex((entry) => entry.name === name);
    if (index < 0 || index === current) return false;
    current = index;
    bus.selection = null;
    bus.emit("entry", bus.entry());
    bus.emit("select", null);
    return true;
  }

  // --- the address: #entry=...&node=...&upper=...&lower=..., so that what is looked at can be linked to. What follows at once, as while a key is held, is one
  // step of the history: browsers refuse more than some a second.

  const SETTLED = 250;
  let asked = -Infinity, waiting = 0;

  function write(step, hash) {
    if (step) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  }

  function remember(step) {
    if (restoring) return;
    clearTimeout(waiting);
    const said = new URLSearchParams();
    if (data.entries.length > 1) said.set("entry", bus.entry().name);
    if (bus.selection) said.set("node", bus.selection.node);
    for (const dock of ["upper", "lower"]) if (docks[dock].shown) said.set(dock, docks[dock].shown);
    const hash = `#${said}`;
    if (hash === location.hash) return;
    const before = asked;
    asked = performance.now();
    if (asked - before < SETTLED) waiting = setTimeout(write, SETTLED, false, hash);
    else write(step, hash);
  }

  function restore() {
    const said = new URLSearchParams(location.hash.slice(1));
    clearTimeout(waiting);
    restoring = true;
    enter(said.get("entry") ?? data.entries[0].name);
    for (const dock of ["upper", "lower"]) if (panels.has(said.get(dock))) show(said.get(dock), dock);
    if (panels.has(said.get("panel"))) show(said.get("panel"));
    if (said.get("node") || bus.selection) bus.select(said.get("node") ? { node: said.get("node") } : null);
    restoring = false;
  }

  // --- docks, tabs and splitters

  function show(id, where = null) {
    const spec = panels.get(id);
    if (!spec || !spec.shown) return;
    const dock = docks[where || spec.place];
    if (spec.place !== dock.name) moveTo(id, dock);
    if (!restoring) document.body.classList.remove(dock.name === "upper" ? "only-lower" : "only-upper");
    dock.shown = id;
    for (const [other, tab] of dock.tabs) tab.setAttribute("aria-selected", other === id);
    for (const child of dock.body.children) child.hidden = child.dataset.panel !== id;
    render(id);
    bus.emit("show", id);
    remember(false);
  }

  // The place of a panel, which is filled when it is first asked for.
  function render(id) {
    if (rendered.has(id)) return rendered.get(id);
    const spec = panels.get(id);
    const place = element("section.panel", { "data-panel": id, role: "tabpanel", "aria-label": spec.title });
    rendered.set(id, place);
    docks[spec.place].body.append(place);
    spec.render(place, data, bus);
    return place;
  }

  // On paper there are no tabs: every panel is laid out, one after another, in light colours, and drawn before the browser takes the page.
  function print(on) {
    document.documentElement.classList.toggle("printed", on);
    colours = new Map();
    for (const [id, spec] of panels) if (spec.shown && (on || rendered.has(id))) render(id).hidden = !on && docks[spec.place].shown !== id;
    bus.emit("theme", on || !dark.matches ? "light" : "dark");
    for (const place of rendered.values()) if (on && place.view && place.view.paint) place.view.paint();
    for (const table of document.querySelectorAll(".grid")) table.grid.paint();
    bus.emit("print", on);
  }

  function moveTo(id, dock) {
    const before = docks[panels.get(id).place];
    const tab = before.tabs.get(id);
    before.tabs.delete(id);
    dock.tabs.set(id, tab);
    dock.strip.append(tab);
    panels.get(id).place = dock.name;
    if (rendered.has(id)) dock.body.append(rendered.get(id));
    share();
    if (before.shown === id) {
      before.shown = null;
      const next = before.tabs.keys().next();
      if (!next.done) show(next.value, before.name);
    }
  }

  // A part without tabs leaves its room to the other one.
  function share() {
    for (const dock of Object.values(docks)) dock.element.hidden = !dock.tabs.size;
    document.body.classList.toggle("single", docks.upper.element.hidden || docks.lower.element.hidden);
  }

  function makeDock(name) {
    const strip = element("div.tabs", { role: "tablist" });
    const grow = element("button.plain", { title: "Give this part all the room, or share it again", "aria-label": "Enlarge", onclick: () => document.body.classList.toggle(`only-${name}`) }, "⤢");
    const body = element("div.dock-body");
    const made = { name, strip, body, shown: null, tabs: new Map() };
    made.element = element(`div.dock.${name}`, { hidden: true }, element("div.dock-head", {}, strip, grow), body);
    docks[name] = made;
    return made.element;
  }

  // A bar between two parts that is dragged: `measure(event)` gives the size that `property` takes.
  function splitter(kind, property, measure) {
    const bar = element(`div.splitter.${kind}`, { role: "separator", tabindex: "-1" });
    bar.addEventListener("pointerdown", (event) => {
      bar.setPointerCapture(event.pointerId);
      const move = (moved) => document.documentElement.style.setProperty(property, `${measure(moved)}px`);
      bar.addEventListener("pointermove", move);
      bar.addEventListener("pointerup", () => bar.removeEventListener("pointermove", move), { once: true });
      event.preventDefault();
    });
    return bar;
  }

  // --- the inspector

  function inspect(place) {
    const chosen = bus.selection;
    place.replaceChildren();
    const sections = [...details.values()].sort((a, b) => (a.order || 0) - (b.order || 0));
    for (const spec of sections) {
      const made = spec.render(bus.entry(), chosen ? chosen.node : null);
      if (made) place.append(element("section.detail", {}, spec.title ? element("h3", {}, spec.title) : null, made));
    }
    place.scrollTop = 0;
  }

  // --- start

  function start() {
    const place = document.getElementById("app");
    const found = document.getElementById("data");
    if (!place || !found) return;
    data = JSON.parse(found.textContent);
    const chooser = element("select", { "aria-label": "Entry", onchange: (event) => bus.open(event.target.value) });
    for (const entry of data.entries) chooser.append(element("option", { value: entry.name }, entry.name));
    chooser.hidden = data.entries.length < 2;
    bus.on("entry", (entry) => (chooser.value = entry.name));
    const facts = element("span.facts", {}, data.subject || "");
    const search = element("div.search");
    const header = element("header", {}, element("h1", {}, data.title), chooser, facts, search);
    const inspector = element("aside", { "aria-label": "The selected node" });
    const column = element("div.docks", {}, makeDock("upper"), splitter("row", "--lower", (event) => Math.max(80, innerHeight - event.clientY)), makeDock("lower"));
    const side = splitter("column", "--side", (event) => Math.max(200, innerWidth - event.clientX));
    place.replaceChildren(header, element("div.main", {}, column, side, inspector));
    for (const [id, spec] of panels) {
      spec.shown = !spec.available || spec.available(data);
      spec.place = spec.dock || "lower";
      if (!spec.shown) continue;
      const dock = docks[spec.place];
      const tab = element("button.tab", { role: "tab", title: "Double-click: to the other part", onclick: () => show(id), ondblclick: () => show(id, docks.upper.tabs.has(id) ? "lower" : "upper") }, spec.title);
      dock.tabs.set(id, tab);
      dock.strip.append(tab);
    }
    share();
    bus.on("select", () => inspect(inspector));
    bus.on("entry", () => inspect(inspector));
    dark.addEventListener("change", () => {
      colours = new Map();
      bus.emit("theme", dark.matches ? "dark" : "light");
    });
    bus.emit("start", { search, facts, data });
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    addEventListener("hashchange", restore);
    addEventListener("popstate", restore);
    addEventListener("keydown", (event) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        const field = search.querySelector("input");
        if (!field) return;
        field.focus();
        field.select();
        event.preventDefault();
      } else if (event.key === "Escape") {
        if (typing) document.activeElement.blur();
        bus.emit("escape");
        bus.select(null);
      }
    });
    restoring = true;
    for (const dock of Object.values(docks)) {
      const first = dock.tabs.keys().next();
      if (!first.done) show(first.value);
    }
    restoring = false;
    inspect(inspector);
    restore();
  }

  document.addEventListener("DOMContentLoaded", start);
  return {
    bus, element, count, bytes, seconds, family, colour, css,
    get data() { return data; },
    text: (number) => data.strings[number],
    theme: () => (dark.matches && !ostinato.printed() ? "dark" : "light"),
    printed: () => document.documentElement.classList.contains("printed"),
    ratio: () => (ostinato.printed() ? 2 : window.devicePixelRatio || 1),
    panel: (id, spec) => panels.set(id, spec),
    detail: (id, spec) => details.set(id, spec),
  };
})();
