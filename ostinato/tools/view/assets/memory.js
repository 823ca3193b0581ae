// The inspector's sections about memory and time: where the selected value or node lies, with whom it shares its bytes, and what its steps take.
"use strict";

(() => {
  const { element, bytes, count } = ostinato;
  const plots = ostinato.plots;
  const FEW = 4;

  const regionOf = (data, device, kind) => (data.memory || []).find((region) => region.device === device && region.kind === kind);

  function place(region, offset, size) {
    const at = `${count(offset)} to ${count(offset + size)}`;
    return region && region.base ? element("span", {}, at, element("div.mono.soft", {}, plots.address(region.base, offset))) : at;
  }

  function slotFacts(map, at, node) {
    const values = map.values(at),
      region = regionOf(ostinato.data, map.arena.device, "arena");
    const others = values.filter((value) => value.name !== node && !value.name.startsWith("#")).map((value) => value.name);
    const peak = map.first[at] <= map.arena.peak_step && map.arena.peak_step < map.last[at];
    return ostinato.factList([
      ["slot", `${bytes(map.bytes[at])}, ${map.role(at)}`],
      ["arena", place(region, map.offset[at], map.bytes[at])],
      ["steps", `${count(map.first[at])} to ${count(map.last[at] - 1)}`],
      peak && ["at the peak", plots.percent(map.bytes[at] / Math.max(1, map.arena.lower_bound))],
      others.length && [
        "shared with",
        element(
          "span",
          {},
          ...others.slice(0, FEW).map((name) => element("div", {}, ostinato.link(name))),
          others.length > FEW ? element("span.soft", {}, `and ${others.length - FEW} more`) : null,
        ),
      ],
    ]);
  }

  function memory(entry, node) {
    if (!entry.plan || node === null) return null;
    const found = [];
    entry.plan.arenas.forEach((_, arena) => {
      const map = ostinato.SlotMap.of(entry.plan, arena);
      for (const at of map.touched(node).made) found.push(slotFacts(map, at, node));
    });
    for (const region of ostinato.Space.regions(ostinato.data.memory || [], entry)) {
      const items = region.items.filter(([name]) => ostinato.text(name) === node);
      for (const [, , offset, size, what] of items) {
        found.push(
          ostinato.factList([
            ["lies in", `${region.device} ${region.kind}, ${ostinato.text(what)}`],
            ["bytes", bytes(size)],
            ["at", place(region, offset, size)],
          ]),
        );
      }
    }
    if (!found.length) return null;
    return element(
      "div.slots",
      {},
      ...found.slice(0, FEW),
      found.length > FEW ? element("div.soft", {}, `and ${found.length - FEW} more slots`) : null,
      element("button.link", { onclick: () => ostinato.bus.show("arena") }, "show in the arena"),
    );
  }

  function time(entry, node) {
    if (!entry.plan || node === null) return null;
    const { steps } = entry.plan,
      { profile } = entry,
      rows = [];
    steps.node.forEach((id, step) => {
      if (ostinato.text(id) !== node || rows.length >= FEW) return;
      rows.push(
        ostinato.factList([
          ["step", `${count(step)} of ${count(steps.node.length)}`],
          ["kernel", element("code", {}, ostinato.text(steps.kernel[step]))],
          profile &&
            profile.share &&
            profile.share[step] >= 0 && ["of ceiling", `${plots.percent(profile.share[step])}, bound by ${profile.bound[step]}`],
          profile &&
            profile.seconds[step] >= 0 && [
              "measured",
              `${ostinato.seconds(profile.seconds[step])}, ${plots.percent(profile.seconds[step] / (profile.sum || 1))} of all steps`,
            ],
          ["moves", bytes(steps.bytes[step])],
          steps.flops[step] && ["computes", `${plots.short(steps.flops[step])} operations`],
        ]),
      );
    });
    return rows.length ? element("div.slots", {}, ...rows) : null;
  }

  ostinato.detail("memory", { title: "Memory", order: 20, render: memory });
  ostinato.detail("step", { title: "Step", order: 25, render: time });
})();
