// What takes the most: a table of the steps of a plan, or of its operators or layers, with what each takes, moves and computes.
"use strict";

(() => {
  const { element, bytes, seconds, text } = ostinato;
  const plots = ostinato.plots;

  const ABOUT = {
    bytes: "Read and written, as the operator table models it",
    flops: "Floating-point operations, as the operator table models them",
    ceiling: "The least that it can take on this device, as that was measured, over what it took; above 100 % its bytes came from a cache",
    bound: "What the least time comes from: moving bytes, computing, or being launched",
  };

  /** Steps with the same key together. `width` is how much each step takes of what is shown. */
  function grouped(entry, group, width) {
    const { steps } = entry.plan;
    const { profile } = entry;
    const rows = new Map();
    steps.node.forEach((node, step) => {
      const op = text(steps.op[step]) || text(steps.kernel[step]);
      const key = group === "steps" ? step : group === "operators" ? op : steps.layer[step];
      const fresh = { key, step, node: text(node), op, kernel: text(steps.kernel[step]), steps: 0, much: 0, time: 0, bytes: 0, flops: 0, least: 0 };
      if (!rows.has(key)) rows.set(key, fresh);
      const row = rows.get(key);
      const time = profile ? Math.max(0, profile.seconds[step]) : 0;
      row.steps += 1;
      row.much += width[step];
      row.time += time;
      row.bytes += steps.bytes[step];
      row.flops += steps.flops[step];
      row.least += profile && profile.share ? Math.max(0, profile.share[step]) * time : 0;
      row.bound = profile && profile.bound ? profile.bound[step] : "";
    });
    return [...rows.values()];
  }

  const swatch = (colour, name) => element("span", {}, element("i.swatch", { style: `background: ${colour}` }), name);
  const part = (a, b) => (b ? a / b : 0);
  const number = (title, get, show, width, about) => ({ title, get, show: (row) => show(get(row)), width, right: true, about });

  function namesOf(group, layers) {
    const operator = (width) => ({ title: "operator", get: (row) => row.op, show: (row) => swatch(ostinato.colour(row.op), row.op), width });
    const steps = { title: "steps", get: (row) => row.steps, width: "70px", right: true };
    const layer = (row) => (row.key < 0 ? "none" : `layer ${row.key}`);
    if (group === "operators") return [operator("minmax(150px, 2fr)"), steps];
    if (group === "layers") {
      const shown = (row) => swatch(plots.colours.layer(row.key, layers), layer(row));
      return [{ title: "layer", get: (row) => row.key, text: layer, show: shown, width: "minmax(110px, 1fr)" }, steps];
    }
    return [
      { title: "step", get: (row) => row.step, width: "56px", right: true },
      { title: "node", get: (row) => row.node, width: "minmax(126px, 2.4fr)" },
      operator("minmax(96px, 1.2fr)"),
      { title: "kernel", get: (row) => row.kernel, width: "minmax(64px, 1fr)" },
    ];
  }

  function figuresOf(rows, profile, group, metric) {
    const total = rows.reduce((sum, row) => sum + row.much, 0) || 1;
    const most = rows.reduce((high, row) => Math.max(high, row.much), 0) || 1;
    const bar = (row) =>
      element("span.share", {}, element("i", { style: `width: ${((100 * row.much) / most).toFixed(1)}%` }), plots.percent(row.much / total));
    const share = { title: "share", get: (row) => row.much / total, show: bar, width: "minmax(84px, 1fr)", right: true, about: `Of ${metric.about}` };
    const moved = number("bytes", (row) => row.bytes, bytes, "80px", ABOUT.bytes);
    const computed = number("FLOP", (row) => row.flops, plots.short, "88px", ABOUT.flops);
    const intensity = number("FLOP / byte", (row) => part(row.flops, row.bytes), plots.short, "100px");
    if (!profile) return [share, moved, computed, intensity];
    const timed = [
      share,
      number("time", (row) => row.time, seconds, "76px"),
      moved,
      computed,
      number(
        "bytes / s",
        (row) => part(row.bytes, row.time),
        (value) => `${plots.short(value)}B`,
        "78px",
      ),
      number("FLOP / s", (row) => part(row.flops, row.time), plots.short, "78px"),
    ];
    if (!profile.share) return timed;
    timed.push(number("of ceiling", (row) => part(row.least, row.time), plots.percent, "84px", ABOUT.ceiling));
    if (group === "steps") timed.push({ title: "bound", get: (row) => row.bound, width: "78px", about: ABOUT.bound });
    return timed;
  }

  /** The table of an entry: `group` is "steps", "operators" or "layers". */
  ostinato.timelineGrid = (entry, group, width, metric, bus) => {
    const rows = grouped(entry, group, width);
    const names = namesOf(
      group,
      entry.plan.steps.layer.reduce((most, layer) => Math.max(most, layer + 1), 1),
    );
    const grid = new ostinato.Grid([...names, ...figuresOf(rows, entry.profile, group, metric)], {
      name: group,
      sort: names.length,
      down: true,
      pick: (row) => bus.select({ node: row.node }),
      picked: (row) => group === "steps" && bus.selection && bus.selection.node === row.node,
    });
    grid.set(rows);
    return grid;
  };
})();
