// The inspector's own sections: what a node is, what it reads and makes, why its row was chosen, and what it was made of.
"use strict";

(() => {
  const { element, text } = ostinato;
  const entryGraph = (entry) => ostinato.graph(entry);

  function link(name, shown = name) {
    return element("button.link.mono", { onclick: () => ostinato.bus.select({ node: name }), title: name }, shown);
  }

  const swatch = (op) => element("span.swatch", { style: `background: var(--op-${ostinato.family(op)})` });

  function facts(rows) {
    return element("dl", {}, ...rows.filter(Boolean).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }

  // --- nothing selected: the entry

  function overview(entry) {
    const graph = entryGraph(entry);
    const counts = new Map();
    for (const node of graph.nodes) counts.set(node.op, (counts.get(node.op) || 0) + 1);
    const common = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 14);
    const most = common.length ? common[0][1] : 1;
    const bars = element("div.bars", {}, ...common.flatMap(([op, number]) => [
      element("span", {}, op),
      element("i", { style: `width: ${Math.max(2, (100 * number) / most)}%; background: var(--op-${ostinato.family(op)})` }),
      element("span.soft", {}, ostinato.count(number)),
    ]));
    const repeats = graph.repeats.map((repeat) => `${repeat.count} × ${repeat.period} nodes`).join(", ");
    return element("div", {},
      element("p.title", {}, entry.name),
      facts([
        ["nodes", ostinato.count(graph.nodes.length)],
        ["repeats", repeats || "none"],
        ["inputs", roles(graph)],
        ["outputs", ostinato.count(graph.outputs.length)],
      ]),
      element("h3", { style: "margin-top: 14px" }, "Operators"), bars,
      element("h3", { style: "margin-top: 14px" }, "Keys"),
      element("p.keys.soft", { style: "margin: 0" }, element("kbd", {}, "/"), " search, ", element("kbd", {}, "Esc"), " clear, ", element("kbd", {}, "+"), " ", element("kbd", {}, "−"), " ", element("kbd", {}, "0"),
        " zoom, arrows follow the edges, wheel moves, Ctrl and wheel zooms"),
    );
  }

  function roles(graph) {
    const found = new Map();
    for (const input of graph.inputs) found.set(input.role, (found.get(input.role) || 0) + 1);
    return [...found].map(([role, number]) => `${ostinato.count(number)} ${role}`).join(", ") || "none";
  }

  // --- the node

  function head(entry, name) {
    if (name === null) return overview(entry);
    const graph = entryGraph(entry);
    const node = graph.byName.get(name);
    if (!node) return outsider(entry, graph, name);
    const repeat = graph.home[node.index];
    const stretch = repeat ? ostinato.stretchOf(graph, node) : -1;
    const turn = (to) => ostinato.bus.select({ node: ostinato.twin(graph, node, (to + repeat.count) % repeat.count).name });
    return element("div", {},
      element("p.title", {}, node.name),
      facts([
        ["operator", element("span", {}, swatch(node.op), node.op)],
        node.row && ["row", element("code", {}, node.row)],
        node.attributes && ["attributes", element("code", {}, node.attributes)],
        node.line && ["line", element("code", {}, node.line)],
        ["node", `${ostinato.count(node.index)} of ${ostinato.count(graph.nodes.length)}`],
        graph.clones.has(node.name) && ["computes again", link(graph.clones.get(node.name))],
      ]),
      repeat && element("div.stretch", {},
        element("button", { onclick: () => turn(stretch - 1), "aria-label": "The same node of the stretch before" }, "‹"),
        `${stretch + 1} of ${repeat.count} that are alike`,
        element("button", { onclick: () => turn(stretch + 1), "aria-label": "The same node of the stretch after" }, "›")),
    );
  }

  function outsider(entry, graph, name) {
    const input = graph.inputByName.get(name);
    const planned = entry.plan && entry.plan.steps.node.some((step) => text(step) === name);
    const said = planned ? "A step of the plan that is no node of this graph." : `${entry.name} has no node or value of this name.`;
    if (!input) return element("div", {}, element("p.title", {}, name), element("p.soft", {}, said));
    return element("div", {}, element("p.title", {}, name), facts([["role", input.role], ["type", element("code", {}, input.type)]]));
  }

  function reads(entry, name) {
    const graph = entryGraph(entry);
    const node = graph.byName.get(name);
    if (!node || !node.reads.length) return null;
    return element("ul", {}, ...node.reads.map((value) => {
      if (value === null) return element("li.soft", {}, "left out");
      const input = graph.inputByName.get(value);
      return element("li", {}, link(value), " ", input ? element("span.chip", {}, input.role) : null, element("div.soft.mono", {}, graph.types.get(value) || ""));
    }));
  }

  function makes(entry, name) {
    const graph = entryGraph(entry);
    const node = graph.byName.get(name);
    if (!node) return null;
    return element("ul", {}, ...node.makes.map((value, place) => element("li", {},
      element("span.mono", {}, value), " ", graph.outputSet.has(value) ? element("span.chip", {}, "output") : null, element("div.soft.mono", {}, node.types[place]))));
  }

  function readBy(entry, name) {
    const graph = entryGraph(entry);
    const node = graph.byName.get(name);
    const values = node ? node.makes : [name];
    const found = [...new Set(values.flatMap((value) => graph.readers.get(value) || []))];
    if (!found.length) return null;
    const line = (reader) => element("li", {}, swatch(reader.op), link(reader.name));
    const rest = found.length > 14 ? element("details", {}, element("summary.soft", {}, `${found.length - 12} more`), element("ul", {}, ...found.slice(12, 500).map(line))) : null;
    return element("div", {}, element("ul", {}, ...found.slice(0, rest ? 12 : 14).map(line)), rest);
  }

  function decision(entry, name) {
    const node = entryGraph(entry).byName.get(name);
    if (!node || !node.decision) return null;
    const [row, level, exactness, evidence, note, policies, rejected] = node.decision;
    return element("div", {},
      facts([
        ["chosen", element("span", {}, element("code", {}, text(row)), " ", element("span.chip", {}, text(level)))],
        ["exactness", text(exactness)],
        ["evidence", evidence.length ? element("span", {}, ...evidence.map((id) => element("code.chip", {}, text(id)))) : element("span.soft", {}, "no record")],
        text(note) && ["note", text(note)],
        ...policies.map(([policy, taken, why]) => ["policy", `${text(policy)}: ${taken ? "taken" : "bypassed"}${text(why) ? `, ${text(why)}` : ""}`]),
      ]),
      rejected.length ? element("div", { style: "margin-top: 8px" }, element("div.soft", {}, `${rejected.length} other ${rejected.length > 1 ? "rows" : "row"}`), ...rejected.map(against)) : null,
    );
  }

  function against([row, level, reason, why, evidence]) {
    return element("details", {},
      element("summary", {}, element("code", {}, text(row)), " ", element("span.chip", {}, text(level)), " ", element("span.warn", {}, text(reason))),
      element("div.soft", {}, text(why)),
      ...evidence.map((id) => element("code.chip", {}, text(id))));
  }

  function origins(entry, name) {
    const node = entryGraph(entry).byName.get(name);
    if (!node || !node.origins.length) return null;
    return element("ul", {}, ...node.origins.map(([origin, op, line]) => element("li", {},
      swatch(text(op)), element("span.mono", {}, text(origin)), element("span.soft", {}, ` ${text(op)}`), element("div.soft.mono", {}, text(line)))));
  }

  ostinato.link = link;
  ostinato.factList = facts;
  ostinato.detail("node", { order: 0, render: head });
  ostinato.detail("decision", { title: "Decision", order: 10, render: decision });
  ostinato.detail("makes", { title: "Makes", order: 30, render: makes });
  ostinato.detail("reads", { title: "Reads", order: 40, render: reads });
  ostinato.detail("readers", { title: "Read by", order: 50, render: readBy });
  ostinato.detail("origins", { title: "Made of", order: 60, render: origins });
})();
