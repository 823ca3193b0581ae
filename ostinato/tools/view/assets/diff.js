// What differs between two programs: figures, the arenas side by side in one scale, and every node, step and slot that is not the same.
//
// Both maps show the same steps and bytes, whatever is zoomed or dragged: what is wider or higher on one side is longer or larger.
"use strict";

(() => {
  const { element, bytes, count, css, text } = ostinato;
  const plots = ostinato.plots;
  const KINDS = ["added", "removed", "resized", "reshared", "moved", "shifted", "same"];
  const MOST_FACTS = 40;

  class DiffPanel {
    constructor(place, data, bus) {
      this.bus = bus;
      this.data = data.diff;
      this.what = "nodes";
      this.figures = element("div.changes");
      this.maps = ["before", "after"].map((side) => {
        const canvas = element("canvas", { "aria-label": `The arena ${side}` });
        return { side, canvas, title: element("div.side-title"), stage: element("div.stage", {}, canvas) };
      });
      this.legend = element("div.legend");
      this.by = "change";
      this.pick = plots.choice("Colour the arenas by", ["change", "role"], this.by, (by) => {
        this.by = by;
        this.recolour();
      });
      this.lists = element("div.top");
      this.choice = element("span");
      place.append(
        element(
          "div.diff",
          {},
          this.figures,
          element(
            "div.sides",
            {},
            element("div.pair", {}, ...this.maps.map(({ title, stage }) => element("div.half", {}, title, stage))),
            this.legend,
            this.lists,
          ),
        ),
      );
      this.draw = plots.framed(() => this.paint());
      for (const half of this.maps) {
        new ResizeObserver(() => this.draw()).observe(half.stage);
        this.listen(half);
      }
      bus.on("entry", () => this.open());
      bus.on("select", () => {
        if (this.grid) this.grid.draw();
      });
      bus.on("theme", () => {
        if (this.maps[0].map) this.recolour();
      });
      this.open();
    }

    open() {
      this.entry = this.data.entries.find((entry) => entry.name === this.bus.entry().name) || null;
      const entry = this.entry,
        after = this.bus.entry().plan;
      this.showFigures();
      const drawn = Boolean(entry && entry.plan && entry.old && after);
      this.maps[0].stage.parentElement.parentElement.hidden = this.legend.hidden = !drawn;
      this.lists.hidden = !entry;
      if (drawn) {
        [this.maps[0].map, this.maps[1].map] = [ostinato.SlotMap.of(entry.old), ostinato.SlotMap.of(after)];
        const maps = this.maps.map(({ map }) => map);
        this.whole = { left: 0, right: Math.max(...maps.map((map) => map.steps)), bottom: 0, top: 1.03 * Math.max(...maps.map((map) => map.height)) };
        this.view = this.whole;
        this.maps.forEach((half, index) => {
          const stats = half.map.arena;
          half.title.replaceChildren(
            element("b", {}, index ? this.data.after : this.data.before),
            ` ${bytes(stats.arena_bytes)}`,
            element(
              "span.soft",
              {},
              `, bound ${bytes(stats.lower_bound)}, ${count(half.map.slots.length)} slots, ${count(half.map.plan.steps.node.length)} steps`,
            ),
          );
          half.kinds = half.map.slots.map((_, place) => this.kindOf(half, place));
          half.roles = half.map.slots.map((_, place) => half.map.role(place));
        });
        this.recolour();
      } else for (const half of this.maps) half.map = null;
      if (entry) this.list();
    }

    // --- figures

    showFigures() {
      const { data, entry } = this;
      const only = [
        [data.before, data.only_before],
        [data.after, data.only_after],
      ].filter(([, names]) => names.length);
      const rows = (title, figures, all) => {
        const shown = figures.filter(([name, before, after]) => before !== after || all.includes(name));
        return shown.length
          ? [
              element("h3", {}, title),
              element(
                "table",
                {},
                element(
                  "thead",
                  {},
                  element(
                    "tr",
                    {},
                    ...["", data.before, data.after, "change"].map((name, index) => element(`th${index ? ".number" : ""}`, {}, name)),
                  ),
                ),
                element("tbody", {}, ...shown.map((figure) => this.figure(...figure))),
              ),
            ]
          : [];
      };
      const facts = [...data.facts, ...(entry && entry.plan ? entry.plan.facts : []), ...(entry ? entry.graph.outputs : [])];
      this.figures.replaceChildren(
        ...only.map(([title, names]) => element("p", {}, `only in ${title}: ${names.join(", ")}`)),
        ...(entry ? [] : [element("p.soft", {}, "The other side has no such entry.")]),
        ...(entry && entry.plan ? rows("Plan", entry.plan.figures, ["arena", "bound", "steps"]) : []),
        ...rows("Regions", data.regions, []),
        ...(entry ? rows("Graph", [["same nodes", entry.graph.same, entry.graph.same, ""], ...entry.graph.figures], ["same nodes"]) : []),
        ...(entry ? this.reordered(entry) : []),
        ...(facts.length
          ? [
              element("h3", {}, "Made otherwise"),
              element(
                "dl",
                {},
                ...facts
                  .slice(0, MOST_FACTS)
                  .flatMap(([what, before, after]) => [
                    element("dt", {}, what),
                    element("dd", {}, element("del", {}, before || "none"), " ", element("ins", {}, after || "none")),
                  ]),
              ),
              facts.length > MOST_FACTS ? element("p.soft", {}, `and ${count(facts.length - MOST_FACTS)} more`) : null,
            ].filter(Boolean)
          : []),
      );
    }

    /** What stands in another order and is the same otherwise. */
    reordered({ graph, plan }) {
      const found = [
        [graph.moved, "nodes"],
        [plan ? plan.order : 0, "steps"],
      ].filter(([number]) => number);
      return found.map(([number, what]) => element("p.soft", {}, `${count(number)} ${what} come in another order`));
    }

    figure(name, before, after, unit) {
      const shown = (value) => (value === null ? "none" : unit === "B" ? bytes(value) : count(value));
      const change = (after || 0) - (before || 0),
        part = before ? ` (${change > 0 ? "+" : ""}${plots.percent(change / before)})` : "";
      const said = change ? `${change > 0 ? "+" : "−"}${unit === "B" ? bytes(Math.abs(change)) : count(Math.abs(change))}${part}` : "";
      return element(
        "tr",
        {},
        element("td", {}, name),
        element("td.number", {}, shown(before)),
        element("td.number", {}, shown(after)),
        element(`td.number${unit === "B" && change ? (change > 0 ? ".bad" : ".good") : ""}`, {}, said),
      );
    }

    // --- the arenas

    /** What became of a slot: slots of the difference are found again by their values. */
    kindOf(half, place) {
      if (!half.known || half.plan !== half.map.plan) {
        half.plan = half.map.plan;
        half.known = new Map(
          this.entry.plan.slots
            .filter((slot) => slot[half.side].length)
            .map((slot) => [`${slot[half.side].join(" ")}@${slot.offset[half.side === "after" ? 1 : 0]}`, slot.kind]),
        );
      }
      const { first_value: starts, values } = half.map.plan.slots,
        slot = half.map.slots[place];
      return half.known.get(`${values.name.slice(starts[slot], starts[slot + 1]).join(" ")}@${half.map.offset[place]}`) || "same";
    }

    recolour() {
      if (!this.view) return;
      const byRole = this.by === "role",
        paper = plots.rgb(css("--paper"));
      const keys = (half) => (byRole ? half.roles : half.kinds),
        found = new Set(this.maps.flatMap(keys));
      const named = (byRole ? this.bus.entry().plan.roles : KINDS).filter((key) => found.has(key));
      const colours = new Map(named.map((key) => [key, byRole ? plots.colours.role(key) : css(`--diff-${key}`)]));
      const pixels = new Map(named.map((key) => [key, plots.rgb(colours.get(key))]));
      for (const half of this.maps) {
        half.fills = Uint32Array.from(keys(half), (key) => plots.pixel(pixels.get(key)));
        half.edges = Uint32Array.from(keys(half), (key) => plots.pixel(plots.mix(pixels.get(key), paper, 0.5)));
      }
      this.background = plots.pixel(plots.rgb(css("--sunken")));
      const said = { moved: "at another offset", shifted: "at other steps", reshared: "shared otherwise" };
      this.legend.replaceChildren(
        this.pick,
        ...named.map((key) => element("span.key", {}, element("i", { style: `background: ${colours.get(key)}` }), said[key] || key)),
        element("span.soft", {}, found.size === 1 && found.has("same") ? "no slot differs" : ""),
      );
      this.draw();
    }

    look(view) {
      this.view = ostinato.SlotMap.within(view, this.whole);
      this.draw();
    }

    listen(half) {
      let drag = null;
      const place = (event) => {
        const box = half.canvas.getBoundingClientRect(),
          { left, right, bottom, top } = this.view;
        return {
          step: left + ((event.clientX - box.left) / box.width) * (right - left),
          byte: top - ((event.clientY - box.top) / box.height) * (top - bottom),
        };
      };
      half.canvas.addEventListener(
        "wheel",
        (event) => {
          event.preventDefault();
          const at = place(event),
            by = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))),
            { left, right, bottom, top } = this.view;
          this.look({
            left: at.step + (left - at.step) * by,
            right: at.step + (right - at.step) * by,
            bottom: at.byte + (bottom - at.byte) * by,
            top: at.byte + (top - at.byte) * by,
          });
        },
        { passive: false },
      );
      half.canvas.addEventListener("pointerdown", (event) => {
        half.canvas.setPointerCapture(event.pointerId);
        drag = { at: place(event), moved: 0 };
      });
      half.canvas.addEventListener("pointermove", (event) => {
        const at = place(event);
        if (!drag) {
          const found = half.map.at(at.step, at.byte);
          if (found < 0) {
            plots.hideTip();
            return;
          }
          const [name, kindly, ...facts] = ostinato.slotTip(half.map, found, at.step);
          plots.showTip(event, name, kindly, plots.fact("difference", half.kinds[found]), ...facts);
          return;
        }
        drag.moved += Math.abs(event.movementX) + Math.abs(event.movementY);
        if (drag.moved < 4) return;
        const { left, right, bottom, top } = this.view,
          [x, y] = [drag.at.step - at.step, drag.at.byte - at.byte];
        this.look({ left: left + x, right: right + x, bottom: bottom + y, top: top + y });
      });
      half.canvas.addEventListener("pointerup", (event) => {
        const at = place(event),
          found = drag && drag.moved < 4 ? half.map.at(at.step, at.byte) : -1;
        drag = null;
        if (found >= 0) this.bus.select({ node: half.map.values(found)[0].name });
      });
      half.canvas.addEventListener("pointerleave", () => plots.hideTip());
      half.canvas.addEventListener("dblclick", () => this.look(this.whole));
    }

    paint() {
      for (const half of this.maps) {
        const width = half.stage.clientWidth,
          height = half.stage.clientHeight;
        if (!half.map || width < 40 || height < 40) continue;
        const { context, ratio } = plots.fitted(half.canvas, width, height),
          [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
        if (!half.image || half.image.width !== w || half.image.height !== h) half.image = new ImageData(w, h);
        const pixels = new Uint32Array(half.image.data.buffer);
        pixels.fill(this.background);
        half.canvas.dataset.drawn = half.map.paint(pixels, w, h, this.view, half.fills, half.edges);
        plots.cover(context, half.image);
        const { bottom, top, left, right } = this.view;
        for (const [nbytes, colour, dash] of [
          [half.map.arena.arena_bytes, css("--top"), []],
          [half.map.arena.lower_bound, css("--bound"), [7, 5]],
        ]) {
          const y = ((top - nbytes) / (top - bottom)) * height;
          context.strokeStyle = colour;
          context.lineWidth = 1.5;
          context.setLineDash(dash);
          context.beginPath();
          context.moveTo(0, y);
          context.lineTo(width, y);
          context.stroke();
        }
        context.setLineDash([]);
        const peak = ((half.map.arena.peak_step + 0.5 - left) / (right - left)) * width;
        context.fillStyle = css("--peak");
        context.font = `11px ${css("--sans")}`;
        context.fillText("peak", Math.min(width - 30, peak + 5), 12);
        context.globalAlpha = 0.7;
        context.fillRect(Math.round(peak), 0, 1, height);
        context.globalAlpha = 1;
      }
    }

    // --- the lists

    list() {
      const { graph, plan } = this.entry,
        steps = plan ? plan.steps : [],
        slots = plan ? plan.slots : [];
      const said = (facts) => facts.map(([what, before, after]) => `${what}: ${before || "none"} → ${after || "none"}`).join("; ");
      const names = { nodes: `${count(graph.nodes.length)} nodes`, steps: `${count(steps.length)} steps`, slots: `${count(slots.length)} slots` };
      const kind = {
        title: "change",
        get: (row) => row.kind,
        show: (row) => element("span", {}, element("i.swatch", { style: `background: var(--diff-${row.kind})` }), row.kind),
        width: "104px",
      };
      const name = { title: "name", get: (row) => row.name, width: "minmax(160px, 1.6fr)" };
      const number = (title, get, about) => ({
        title,
        get,
        text: (row) => (get(row) === null ? "" : String(get(row))),
        show: (row) => (get(row) === null ? "" : count(get(row))),
        width: "112px",
        right: true,
        about,
      });
      const columns =
        this.what === "slots"
          ? [
              kind,
              name,
              number("bytes before", (row) => row.bytes[0]),
              number("bytes after", (row) => row.bytes[1]),
              number("grown", (row) => (row.bytes[1] || 0) - (row.bytes[0] || 0)),
              number("offset before", (row) => row.offset[0]),
              number("offset after", (row) => row.offset[1]),
            ]
          : [
              kind,
              name,
              { title: this.what === "steps" ? "kernel" : "operator", get: (row) => row.op, width: "minmax(100px, 1fr)" },
              { title: "what differs", get: (row) => row.facts, width: "minmax(160px, 3fr)" },
            ];
      const rows =
        this.what === "slots"
          ? slots.map((slot) => ({ ...slot, name: text((slot.after.length ? slot.after : slot.before)[0]) }))
          : (this.what === "steps" ? steps : graph.nodes).map((row) => ({
              kind: row.kind,
              name: text(row.after) || text(row.before),
              op: text(row.op),
              facts: said([
                ...(row.before && row.after && row.before !== row.after ? [["name", text(row.before), text(row.after)]] : []),
                ...row.facts,
              ]),
            }));
      const keys = plan ? ["nodes", "steps", "slots"] : ["nodes"];
      const pick = plots.choice(
        "Differences of",
        keys.map((key) => names[key]),
        names[this.what],
        (chosen) => {
          this.what = keys.find((key) => names[key] === chosen);
          this.list();
        },
      );
      this.grid = new ostinato.Grid(columns, {
        name: "differences",
        extra: [pick],
        pick: (row) => this.bus.select({ node: row.name }),
        picked: (row) => this.bus.selection && this.bus.selection.node === row.name,
      });
      this.grid.set(rows);
      this.lists.replaceChildren(this.grid.element);
    }
  }

  ostinato.panel("diff", {
    title: "Difference",
    available: (data) => Boolean(data.diff),
    render: (place, data, bus) => {
      place.view = new DiffPanel(place, data, bus);
    },
  });
})();
