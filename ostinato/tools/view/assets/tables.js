// Two panels of words and numbers: where every value lies, and how good the plan is.
"use strict";

(() => {
  const { element, bytes, count } = ostinato;
  const plots = ostinato.plots;

  // --- addresses

  const TYPE = /^([^[]*)\[(.*)\](?:@(.*))?$/;

  /** Everything that has an address in an entry: what all entries share, its inputs and outputs, and the values of its arenas. */
  function addresses(entry, data) {
    const rows = [],
      memory = data.memory || [],
      { text } = ostinato;
    const bases = new Map(memory.map((region) => [`${region.device}/${region.kind}`, region.base]));
    const when = new Map(entry.plan.elsewhere.map(([name, first, last]) => [name, [first, last]]));
    const add = (row) => {
      const found = TYPE.exec(row.type),
        base = bases.get(`${row.device}/${row.region}`);
      rows.push({
        ...row,
        dtype: found ? found[1] : "",
        shape: found ? found[2] : row.type,
        layout: found ? found[3] || "" : "",
        address: base ? plots.address(base, row.offset) : "",
      });
    };
    for (const region of ostinato.Space.regions(memory, entry)) {
      for (const [name, type, offset, size, what] of region.items) {
        const [first, last] = when.get(name) || [null, null];
        add({
          name: text(name),
          node: text(name),
          what: text(what),
          region: region.kind,
          device: region.device,
          offset,
          bytes: size,
          type: text(type),
          first,
          last,
          shared: 0,
        });
      }
    }
    entry.plan.arenas.forEach((arena, index) => {
      const map = ostinato.SlotMap.of(entry.plan, index);
      map.slots.forEach((_, place) => {
        const values = map.values(place);
        for (const value of values) {
          add({
            ...value,
            name: value.name.replace(/^#/, ""),
            node: value.made >= 0 ? map.node(value.made) : value.name,
            what: map.role(place),
            region: "arena",
            device: arena.device,
            first: map.first[place],
            last: map.last[place] - 1,
            shared: values.length - 1,
          });
        }
      });
    });
    return rows;
  }

  class AddressPanel {
    constructor(place, data, bus) {
      const many = new Set((data.memory || []).map((region) => region.device)).size > 1;
      const loaded = (data.memory || []).some((region) => region.base);
      const step = (value) => (value === null ? "" : String(value));
      this.data = data;
      this.bus = bus;
      this.grid = new ostinato.Grid(
        [
          { title: "name", get: (row) => row.name, width: "minmax(180px, 3fr)" },
          { title: "what", get: (row) => row.what, width: "88px" },
          ...(many ? [{ title: "device", get: (row) => row.device, width: "70px" }] : []),
          { title: "region", get: (row) => row.region, width: "74px" },
          { title: "offset", get: (row) => row.offset, show: (row) => count(row.offset), width: "110px", right: true },
          ...(loaded
            ? [{ title: "address", get: (row) => row.address, width: "128px", right: true, about: "Where it lies in the executable that was viewed" }]
            : []),
          { title: "bytes", get: (row) => row.bytes, show: (row) => count(row.bytes), width: "104px", right: true },
          { title: "dtype", get: (row) => row.dtype, width: "56px" },
          { title: "shape", get: (row) => row.shape, width: "minmax(96px, 1.4fr)" },
          { title: "layout", get: (row) => row.layout, width: "86px" },
          {
            title: "first",
            get: (row) => row.first ?? -1,
            text: (row) => step(row.first),
            width: "58px",
            right: true,
            about: "First step that touches it; of the arena: in which its slot is taken",
          },
          {
            title: "last",
            get: (row) => row.last ?? -1,
            text: (row) => step(row.last),
            width: "58px",
            right: true,
            about: "Last step that touches it, or in which its slot is taken",
          },
          {
            title: "shared",
            get: (row) => row.shared,
            text: (row) => (row.shared ? String(row.shared) : ""),
            width: "66px",
            right: true,
            about: "Other values that share its slot",
          },
        ],
        {
          name: "addresses",
          note: loaded ? "" : element("span.soft", {}, "not loaded: offsets only"),
          pick: (row) => bus.select({ node: row.node }),
          picked: (row) => bus.selection && bus.selection.node === row.node,
        },
      );
      place.append(this.grid.element);
      bus.on("entry", () => this.open());
      bus.on("select", (chosen) => {
        const row = chosen && this.grid.shown.find((found) => found.node === chosen.node);
        if (row) this.grid.reveal(row);
        else this.grid.draw();
      });
      this.open();
    }

    open() {
      const entry = this.bus.entry();
      this.grid.set(entry.plan ? addresses(entry, this.data) : []);
    }
  }

  // --- the plan

  function figures(title, rows, about) {
    return element(
      "section.figures",
      {},
      element("h3", {}, title),
      about ? element("p.soft", {}, about) : null,
      element("dl", {}, ...rows.filter(Boolean).flatMap(([what, said, why]) => [element("dt", { title: why }, what), element("dd", {}, said)])),
    );
  }

  /** Bars of bytes against the largest of them. */
  function bars(rows) {
    const most = Math.max(1, ...rows.map(([, size]) => size));
    return element(
      "div.meters",
      {},
      ...rows.flatMap(([what, size, colour, why]) => [
        element("span", { title: why }, what),
        element("span.track", {}, element("i", { style: `width: ${((100 * size) / most).toFixed(2)}%; background: var(${colour})` })),
        element("span.much", {}, bytes(size)),
      ]),
    );
  }

  function arenaFigures(stats, own) {
    const ratio = stats.lower_bound ? stats.arena_bytes / stats.lower_bound : 1;
    return element(
      "section.figures.wide",
      {},
      element("h3", {}, own ? "Arena" : `Arena on ${stats.device}`),
      bars([
        ["without reuse", stats.sum_bytes, "--role-workspace", "What the arena would take if no slot shared bytes with another one"],
        ["arena", stats.arena_bytes, "--role-activation", "What is allocated"],
        [
          "lower bound",
          stats.lower_bound,
          "--bound",
          "What no placement of this order goes below: the most bytes that are live at one step, or what a search proved",
        ],
      ]),
      element(
        "dl",
        {},
        ...[
          ["arena / bound", ratio.toFixed(4), "1 is proven to be as small as can be"],
          ["saved by reuse", stats.sum_bytes ? plots.percent(1 - stats.arena_bytes / stats.sum_bytes) : "0 %"],
          ["placement", `${stats.status}, by ${stats.solver}`],
          ["peak", `step ${count(stats.peak_step)}`],
          ["slots that reuse bytes", count(stats.reused), "Storage classes and workspaces that take a byte which another one had before"],
          [
            "fragmentation",
            `${plots.percent(stats.mean_fragmentation)} on average, ${plots.percent(stats.worst_fragmentation)} at step ${count(stats.worst_step)}`,
            "The part below the highest live byte that is not live",
          ],
        ].flatMap(([what, said, why]) => [element("dt", { title: why }, what), element("dd", {}, said)]),
      ),
    );
  }

  /** The options that say something, and how many say nothing. */
  function madeBy(options) {
    const said = Object.entries(options).map(([what, text]) => [
      what,
      text
        .replace(what, "")
        .replace(/^\{|\}$/g, "")
        .replace(/(, )?[a-z]+=\[\]/g, "")
        .replace(/^, /, ""),
    ]);
    const set = said.filter(([, text]) => text),
      plain = said.filter(([, text]) => !text).map(([what]) => what);
    if (!said.length) return "";
    return figures("Made by", [
      ...set.map(([what, text]) => [what, element("code", {}, text)]),
      plain.length ? ["no settings", element("span.soft", {}, plain.join(", "))] : null,
    ]);
  }

  function planPanel(place, data, bus) {
    const box = element("div.plan");
    const open = () => {
      const { plan } = bus.entry();
      if (!plan) {
        box.replaceChildren(element("p.empty", {}, "This entry was not planned."));
        return;
      }
      const regions = ostinato.Space.regions(data.memory || [], bus.entry());
      const total = regions.reduce((sum, region) => sum + region.bytes, 0);
      box.replaceChildren(
        ...plan.arenas.map((stats, index) => arenaFigures(stats, index === 0)),
        element(
          "section.figures.wide",
          {},
          element("h3", {}, "Memory ", element("span.plain", {}, `${bytes(total)} in all`)),
          bars(
            regions.map((region) => [
              regions.some((other) => other.device !== region.device) ? `${region.device} ${region.kind}` : region.kind,
              region.bytes,
              region.kind === "arena"
                ? "--role-activation"
                : region.kind === "weights"
                  ? "--what-weight"
                  : region.kind === "state"
                    ? "--what-state"
                    : region.kind === "io"
                      ? "--what-input"
                      : "--what-constant",
            ]),
          ),
        ),
        figures("Steps", [
          ...Object.entries(plan.counts).map(([what, number]) => [what, count(number)]),
          plan.counts.recomputed ? ["extra work", plots.percent(plan.extra_work)] : null,
        ]),
        figures("Made for", [
          ["target", plan.target],
          ["device", plan.device],
          ["alignment", `${plan.alignment} B`],
          ...Object.entries(plan.dims).map(([what, extent]) => [`dimension ${what}`, count(extent)]),
          ["plan", element("code", { title: plan.hash }, plan.hash.slice(0, 12))],
        ]),
        madeBy(plan.options),
      );
    };
    place.append(box);
    bus.on("entry", open);
    open();
  }

  const planned = (data) => data.entries.some((entry) => entry.plan);
  ostinato.panel("addresses", {
    title: "Addresses",
    available: planned,
    render: (place, data, bus) => {
      place.view = new AddressPanel(place, data, bus);
    },
  });
  ostinato.panel("plan", { title: "Plan", available: planned, render: planPanel });
})();
