// The graph of an entry as objects: ostinato.graph(entry) reads the columns of the data once. A node is called by the name of its first result.
"use strict";

(() => {
  const WORKSPACE = "#workspace of ";
  const cache = new WeakMap();

  function read(entry) {
    const { graph } = entry;
    const text = ostinato.text;
    const columns = graph.nodes;
    const maker = new Map();
    const readers = new Map();
    const byName = new Map();
    const nodes = columns.op.map((op, index) => {
      const makes = columns.makes[index].map(text);
      const node = {
        index,
        name: makes[0],
        op: text(op),
        row: text(columns.row[index]),
        reads: columns.reads[index].map((value) => (value < 0 ? null : text(value))),
        makes,
        types: columns.types[index].map(text),
        attributes: text(columns.attributes[index]),
        line: columns.line[index] ? `${text(columns.file[index])}:${columns.line[index]}` : "",
        decision: columns.decision[index] < 0 ? null : graph.decisions[columns.decision[index]],
        origins: columns.origins[index],
      };
      byName.set(node.name, node);
      for (const value of makes) maker.set(value, node);
      for (const value of new Set(node.reads)) {
        if (value === null) continue;
        if (!readers.has(value)) readers.set(value, []);
        readers.get(value).push(node);
      }
      return node;
    });
    const inputs = graph.inputs.map(([name, role, type]) => ({ name: text(name), role: text(role), type: text(type) }));
    const types = new Map(inputs.map((input) => [input.name, input.type]));
    for (const node of nodes) node.makes.forEach((value, place) => types.set(value, node.types[place]));
    const repeats = graph.repeats.map(([start, period, number], order) => ({ order, start, period, count: number, stop: start + period * number }));
    const home = new Array(nodes.length).fill(null);
    for (const repeat of repeats) for (let index = repeat.start; index < repeat.stop; index++) home[index] = repeat;
    return {
      name: text(graph.name), nodes, byName, maker, readers, inputs, types, repeats, home,
      inputByName: new Map(inputs.map((input) => [input.name, input])),
      outputs: graph.outputs.map(text),
      outputSet: new Set(graph.outputs.map(text)),
      clones: new Map(Object.entries(graph.clones)),
    };
  }

  ostinato.graph = (entry) => {
    if (!cache.has(entry)) cache.set(entry, read(entry));
    return cache.get(entry);
  };

  // The stretch of its repeat that a node is in, and the node at the same place of another stretch.
  ostinato.stretchOf = (graph, node) => {
    const repeat = graph.home[node.index];
    return repeat ? Math.floor((node.index - repeat.start) / repeat.period) : -1;
  };
  ostinato.twin = (graph, node, stretch) => {
    const repeat = graph.home[node.index];
    return graph.nodes[repeat.start + stretch * repeat.period + ((node.index - repeat.start) % repeat.period)];
  };

  // A selected name may be that of any value, or of a step's workspace: it stands for the node that makes it.
  ostinato.resolver = (entry, name) => {
    const graph = ostinato.graph(entry);
    const value = name.startsWith(WORKSPACE) ? name.slice(WORKSPACE.length) : name;
    return graph.maker.has(value) ? graph.maker.get(value).name : name;
  };
})();
