// The arena over time: a map of slots with steps across and bytes upwards, the occupancy above it, and who lives at one step beside it.
//
// Wheel: zoom at the pointer (with Shift only steps, with Alt only bytes). Drag: pan. Double click: the slot under the pointer fills the map, or all of it is
// shown again. Click: the node that made what lies there is selected (arena_pointer.js). A selected node's slots stand out, those it writes and those it reads.
"use strict";

(() => {
  const { element, bytes, count, css } = ostinato;
  const plots = ostinato.plots;
  const LEFT = 66,
    RIGHT = 12,
    TOP = 8,
    FOOT = 22,
    BAND = 13,
    MOST_LABELS = 160;

  class ArenaPanel {
    constructor(place, data, bus) {
      this.bus = bus;
      this.by = "role";
      this.only = null; // the legend's entry that alone has its colour
      this.hovered = -1;
      this.pointed = [];
      this.canvas = element("canvas", { tabindex: "0", "aria-label": "The arena over time: steps across, bytes upwards" });
      this.stage = element("div.stage", {}, this.canvas);
      this.small = element("canvas", { "aria-label": "Where in the arena the map is" });
      this.legend = element("div.legend");
      this.facts = element("div.facts");
      this.side = element("div.tenants");
      this.devices = element("span");
      this.space = new ostinato.Space(data, bus);
      place.append(
        element(
          "div.arena",
          {},
          element(
            "div.bar",
            {},
            this.devices,
            plots.choice("Colour by", ["role", "operator", "layer"], this.by, (by) => {
              this.by = by;
              this.only = null;
              this.recolour();
            }),
            this.legend,
            element(
              "span.choice",
              {},
              element("button", { title: "Zoom in (+)", onclick: () => this.zoom(0.6) }, "+"),
              element("button", { title: "Zoom out (-)", onclick: () => this.zoom(1 / 0.6) }, "−"),
              element("button", { title: "To the fullest step (p)", onclick: () => this.toPeak() }, "peak"),
              element("button", { title: "All of it (0)", onclick: () => this.look(this.map.whole) }, "all"),
            ),
          ),
          element("div.split", {}, this.stage, element("div.beside", {}, this.facts, element("div.minimap", {}, this.small), this.side)),
          this.space.element,
        ),
      );
      this.draw = plots.framed(() => this.paint());
      this.canvas.frames = this.draw.times;
      new ResizeObserver(() => this.draw()).observe(this.stage);
      this.pointer = new ostinato.ArenaPointer(this);
      bus.on("entry", () => this.open(bus.entry()));
      bus.on("select", () => this.chosen());
      bus.on("hover", (found) => {
        if (!found || found.from !== "arena") this.pointedAt(found);
      });
      bus.on("theme", () => {
        this.recolour();
        this.space.repaint();
      });
      this.open(bus.entry());
    }

    open(entry, arena = 0) {
      this.entry = entry;
      this.stage.parentElement.hidden = !entry.plan;
      this.space.open(entry);
      if (!entry.plan) return;
      this.map = ostinato.SlotMap.of(entry.plan, arena);
      this.arena = arena;
      this.hovered = -1;
      this.pointed = [];
      this.view = this.map.whole;
      this.step = this.map.arena.peak_step;
      this.devices.replaceChildren(
        ...(entry.plan.arenas.length < 2
          ? []
          : [
              plots.choice(
                "Device",
                entry.plan.arenas.map((item) => item.device),
                this.map.arena.device,
                (device) =>
                  this.open(
                    entry,
                    entry.plan.arenas.findIndex((item) => item.device === device),
                  ),
              ),
            ]),
      );
      const stats = this.map.arena,
        gap = stats.gap ? `${plots.percent(stats.gap)} above the bound` : "at the bound";
      this.facts.replaceChildren(
        element("b", {}, bytes(stats.arena_bytes)),
        ` arena, ${gap}`,
        element("br"),
        element("span.soft", {}, `${count(this.map.slots.length)} slots, ${bytes(stats.sum_bytes)} without reuse, ${stats.status}`),
      );
      this.space.at(this.map.arena.device);
      this.chosen();
      this.recolour();
    }

    // --- colours

    keyOf(place) {
      const { role, op, layer } = this.map.plan.slots,
        slot = this.map.slots[place];
      return this.by === "role"
        ? this.map.plan.roles[role[slot]]
        : this.by === "operator"
          ? ostinato.family(ostinato.text(op[slot]) || "workspace")
          : layer[slot];
    }

    recolour() {
      if (!this.map) return;
      const weights = new Map();
      this.map.slots.forEach((_, place) => {
        const area = this.map.bytes[place] * (this.map.last[place] - this.map.first[place]),
          key = this.keyOf(place);
        weights.set(key, (weights.get(key) || 0) + area);
      });
      const keys = [...weights.keys()],
        roles = this.map.plan.roles;
      if (this.by === "role") keys.sort((a, b) => roles.indexOf(a) - roles.indexOf(b));
      else if (this.by === "layer") keys.sort((a, b) => a - b);
      else keys.sort((a, b) => weights.get(b) - weights.get(a));
      this.layers = this.map.plan.steps.layer.reduce((most, layer) => Math.max(most, layer + 1), 1);
      this.colours = new Map(
        keys.map((key) => [
          key,
          this.by === "role" ? plots.colours.role(key) : this.by === "layer" ? plots.colours.layer(key, this.layers) : css(`--op-${key}`),
        ]),
      );
      this.showLegend(keys);
      this.refill();
    }

    /** The pixels that slots are painted with: pale where something else is asked for; every second layer is a little lighter. */
    refill() {
      const paper = plots.rgb(css("--paper")),
        made = new Map();
      for (const [key, colour] of this.colours) {
        const plain = plots.rgb(colour),
          every = plots.mix(plain, paper, 0.17),
          pale = plots.mix(plain, paper, 0.72);
        made.set(
          key,
          [plain, every, pale].map((shown) => ({
            fill: plots.pixel(shown),
            edge: plots.pixel(plots.mix(shown, paper, 0.45)),
            bright: plots.brightness(shown),
          })),
        );
      }
      const number = this.map.slots.length,
        layer = this.map.plan.slots.layer;
      this.fills = new Uint32Array(number);
      this.edges = new Uint32Array(number);
      this.dark = new Uint8Array(number); // whether black text can be read on it
      for (let place = 0; place < number; place += 1) {
        const key = this.keyOf(place);
        const pale = this.only !== null ? key !== this.only : this.selected && !this.selected.made.has(place) && !this.selected.read.has(place);
        const { fill, edge, bright } = made.get(key)[pale ? 2 : this.by !== "layer" && layer[this.map.slots[place]] % 2 === 1 ? 1 : 0];
        this.fills[place] = fill;
        this.edges[place] = edge;
        this.dark[place] = pale ? 2 : bright > 0.55 ? 1 : 0;
      }
      this.background = plots.pixel(plots.rgb(css("--sunken")));
      this.overview = null;
      this.draw();
    }

    showLegend(keys) {
      const isolate = (key) => {
        this.only = this.only === key ? null : key;
        this.showLegend(keys);
        this.refill();
      };
      const chip = (key) =>
        element(
          "button.key",
          { "aria-pressed": String(this.only === key), title: "Only this one in colour", onclick: () => isolate(key) },
          element("i", { style: `background:${this.colours.get(key)}` }),
          typeof key === "number" ? (key < 0 ? "no layer" : `layer ${key}`) : key,
        );
      if (this.by !== "layer" || keys.length <= 6) {
        this.legend.replaceChildren(...keys.map(chip));
        return;
      }
      const wheel = element(
        "span.wheel",
        {},
        ...keys
          .filter((key) => key >= 0)
          .map((key) =>
            element("button.cell", {
              "aria-pressed": String(this.only === key),
              title: `layer ${key}`,
              "aria-label": `layer ${key}`,
              style: `background:${this.colours.get(key)}`,
              onclick: () => isolate(key),
            }),
          ),
      );
      this.legend.replaceChildren(
        ...keys.filter((key) => key < 0).map(chip),
        element("span.soft", {}, "layer 0"),
        wheel,
        element("span.soft", {}, String(keys[keys.length - 1])),
      );
    }

    // --- what is looked at

    look(view) {
      this.view = ostinato.SlotMap.within(view, this.map.whole);
      this.draw();
    }

    /** As much as `view` shows, with its middle at a step and a byte. */
    lookAt(step, byte, { left, right, bottom, top }) {
      const [x, y] = [(right - left) / 2, (top - bottom) / 2];
      this.look({ left: step - x, right: step + x, bottom: byte - y, top: byte + y });
    }

    /** Zooms by a factor about a point of the map, by default its middle. */
    zoom(by, at = null, across = true, up = true) {
      const { left, right, bottom, top } = this.view,
        x = at ? at.step : (left + right) / 2,
        y = at ? at.byte : (bottom + top) / 2;
      this.look({
        left: across ? x + (left - x) * by : left,
        right: across ? x + (right - x) * by : right,
        bottom: up ? y + (bottom - y) * by : bottom,
        top: up ? y + (top - y) * by : top,
      });
    }

    toPeak() {
      const step = this.map.arena.peak_step,
        half = Math.max(6, this.map.steps / 24);
      this.pin(step);
      this.look({ ...this.map.whole, left: step + 0.5 - half, right: step + 0.5 + half });
    }

    /** Moves the map so that one of these slots is inside, if none is. */
    reveal(places) {
      const { left, right, bottom, top } = this.view,
        { first, last, offset, bytes: sizes } = this.map;
      if (places.some((place) => first[place] < right && last[place] > left && offset[place] < top && offset[place] + sizes[place] > bottom)) return;
      const step = (first[places[0]] + Math.min(last[places[0]], first[places[0]] + right - left)) / 2,
        byte = offset[places[0]] + sizes[places[0]] / 2;
      this.lookAt(step, byte, this.view);
    }

    pin(step) {
      this.step = Math.min(this.map.steps - 1, Math.max(0, Math.floor(step)));
      this.showTenants();
      this.draw();
    }

    chosen() {
      if (!this.map) return;
      const chosen = this.bus.selection;
      this.selected = chosen ? this.map.touched(chosen.node) : null;
      if (this.selected && !this.selected.made.size && !this.selected.read.size) this.selected = null;
      if (this.selected && this.selected.steps.size) this.step = Math.min(...this.selected.steps);
      if (this.selected && this.selected.made.size) this.reveal([...this.selected.made]);
      this.showTenants();
      if (this.colours) this.refill();
    }

    showTenants() {
      const map = this.map,
        all = map.tenants(this.step),
        usage = map.usage(this.step);
      const peak = this.step === map.arena.peak_step ? " (the peak)" : "";
      const largest = all.length ? map.bytes[all[0]] : 1;
      const rows = all.slice(0, 60).map((place) =>
        element(
          "button.tenant",
          {
            title: `${bytes(map.bytes[place])} at ${map.offset[place]}, steps ${map.first[place]} to ${map.last[place] - 1}`,
            onclick: () => this.select(place, this.step),
            onpointerenter: () => {
              this.hovered = place;
              this.draw();
            },
            onpointerleave: () => {
              this.hovered = -1;
              this.draw();
            },
          },
          element("i", { style: `width:${((100 * map.bytes[place]) / largest).toFixed(1)}%` }),
          element("span.name", {}, element("bdi", {}, this.label(place, this.step))),
          element("span.much", {}, bytes(map.bytes[place])),
        ),
      );
      this.side.replaceChildren(
        element(
          "div.head",
          {},
          element("b", {}, `step ${this.step}${peak}`),
          " ",
          element("button.link", { onclick: () => this.bus.select({ node: map.node(this.step) }) }, map.node(this.step)),
          element(
            "div.soft",
            {},
            `${bytes(usage.live)} live in ${count(all.length)} slots${usage.extent > usage.live ? `, ${bytes(usage.extent - usage.live)} of holes below` : ""}`,
          ),
        ),
        ...rows,
        all.length > 60 ? element("div.soft", {}, `and ${all.length - 60} smaller ones`) : "",
      );
    }

    held(place, step) {
      return this.map.held(this.map.values(place), step);
    }

    /** The name of the value that a slot holds at a step. */
    label(place, step) {
      return this.held(place, step).name.replace(/^#/, "");
    }

    /** The node that made what a slot holds at a step. */
    nodeOf(place, step) {
      const held = this.held(place, step);
      return held.made >= 0 ? this.map.node(held.made) : held.name;
    }

    select(place, step) {
      this.bus.select({ node: this.nodeOf(place, step) });
    }

    /** Another panel's node under the pointer: its slots are framed. */
    pointedAt(found) {
      this.pointed = found && this.map ? [...this.map.touched(found.node).made] : [];
      this.draw();
    }

    // --- the picture

    paint() {
      const width = this.stage.clientWidth,
        height = this.stage.clientHeight;
      if (!this.map || width < 120 || height < 90) return;
      ostinato.paintArena(this, width, height);
      const side = this.small.parentElement.clientWidth;
      if (side > 40) ostinato.paintOverview(this, side);
      this.canvas.dataset.drawn = this.drawn;
      this.canvas.dataset.view = [this.view.left, this.view.right, this.view.bottom, this.view.top].join(" ");
    }
  }

  ostinato.arenaLayout = { LEFT, RIGHT, TOP, FOOT, BAND, MOST_LABELS };
  ostinato.panel("arena", {
    title: "Arena",
    available: (data) => data.entries.some((entry) => entry.plan),
    render: (place, data, bus) => {
      place.view = new ArenaPanel(place, data, bus);
    },
  });
})();
