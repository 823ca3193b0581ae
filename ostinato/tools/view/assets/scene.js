// What the graph panel draws: ostinato.scene(graph, shown, taken) -> {items, edges, frames, width, height}.
//
// `shown` maps a repeat to the stretch that stands for all of them, or to "all". Items are the boxes of nodes, inputs and outputs. Where one stretch stands for
// all, an edge of any stretch is drawn at it, and what a stretch hands to the next one is an edge of the kind "carried".
"use strict";

(() => {
  const FONT = { title: "600 12px", line: "11px" };
  const LONGEST = 14; // layers that an edge may cross; longer ones are drawn past the boxes
  const MOST_PILLS = 24;
  const SLIM = /^(reshape|slice|transpose|view|expand|broadcast)$/; // looks at bytes in another way: a box of one line
  const MOST_BESIDE = 3; // inputs of one node that have a box each
  const NARROWEST = 276; // of a frame, for its buttons
  const measure = document.createElement("canvas").getContext("2d");
  const widths = new Map();

  function width(text, font) {
    const key = `${font}${text}`;
    if (!widths.has(key)) {
      measure.font = `${font} ${ostinato.css("--sans")}`;
      widths.set(key, measure.measureText(text).width);
    }
    return widths.get(key);
  }

  // Long names lose their middle: both ends tell more.
  function shortened(text, most) {
    if (text.length <= most) return text;
    const head = Math.floor((most - 1) * 0.4);
    return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
  }

  // What the names of a stretch begin with, by whole words: most of them do, and it becomes the title of the frame.
  function prefix(nodes) {
    const counts = new Map();
    for (const node of nodes) {
      const words = node.name.split(".");
      for (let length = 1; length < words.length; length++) {
        const text = words.slice(0, length).join(".");
        if (/\d$/.test(text)) counts.set(text, (counts.get(text) || 0) + 1);
      }
    }
    let best = "";
    for (const [text, number] of counts) if (number * 3 >= nodes.length && number >= (counts.get(best) || 0)) best = text;
    return best;
  }

  function shape(type) {
    const found = /^(\S+?)\[(.*?)\]/.exec(type);
    return found ? `${found[1]}[${found[2].replace(/\s/g, "")}]` : type;
  }

  function box(node, repeated, block, start, taken) {
    const short = start && node.name.startsWith(`${start}.`) ? node.name.slice(start.length + 1) : node.name;
    const title = shortened(short, 36);
    const op = shortened(node.op, 34);
    const type = shortened(shape(node.types[0]), 34);
    if (SLIM.test(node.op)) {
      const line = `${op}  ${type}`;
      const w = Math.ceil(width(title, FONT.title) + width(line, FONT.line) + 38);
      return { kind: "node", node, name: node.name, title, op: node.op, line, type: "", slim: true, w, h: 24, block, repeat: repeated };
    }
    const time = taken.has(node.name) ? ostinato.seconds(taken.get(node.name)) : "";
    const w = Math.ceil(Math.max(96, width(title, FONT.title) + (time ? width(time, FONT.line) + 14 : 0), width(op, FONT.line) + 12 + width(type, FONT.line)) + 26);
    return { kind: "node", node, name: node.name, title, op: node.op, line: op, type, time, w, h: 42, block, repeat: repeated };
  }

  function pill(kind, value, detail, block, called = value) {
    const title = shortened(called, 32);
    const w = Math.ceil(Math.max(width(title, FONT.title), width(detail, FONT.line)) + 30);
    return { kind, name: value, title, op: "value", line: detail, type: "", w, h: 42, block };
  }

  ostinato.scene = (graph, shown, taken = new Map()) => {
    const items = [];
    const frames = [];
    const framed = [];
    const itemOf = new Array(graph.nodes.length).fill(null);
    const into = [[]]; // items of each block, in program order
    let at = 0;
    const open = () => {
      into.push([]);
      framed.push(null);
      return framed.length - 1;
    };
    const add = (index, block, repeat, start) => {
      const item = box(graph.nodes[index], repeat, block, start, taken);
      itemOf[index] = item;
      into[block].push(item);
    };
    while (at < graph.nodes.length) {
      const repeat = graph.home[at];
      const block = open();
      if (!repeat) {
        while (at < graph.nodes.length && !graph.home[at]) add(at++, block, null, "");
        continue;
      }
      const chosen = shown.get(repeat);
      const stretches = chosen === "all" ? Array.from({ length: repeat.count }, (_, stretch) => stretch) : [chosen];
      stretches.forEach((stretch, number) => {
        const place = number ? open() : block;
        const first = repeat.start + stretch * repeat.period;
        const start = prefix(graph.nodes.slice(first, first + repeat.period));
        for (let index = first; index < first + repeat.period; index++) add(index, place, repeat, start);
        framed[place] = { repeat, stretch, all: chosen === "all", title: start, block: place, items: into[place] };
        frames.push(framed[place]);
      });
      at = repeat.stop;
    }
    if (!framed.length) open();

    // the box that stands for a node, and the stretch that the node is in where one stretch stands for all
    const standing = (node) => {
      const repeat = graph.home[node.index];
      const chosen = repeat ? shown.get(repeat) : "all";
      if (chosen === "all") return [itemOf[node.index], 0, null];
      const stretch = Math.floor((node.index - repeat.start) / repeat.period);
      return [itemOf[node.index + (chosen - stretch) * repeat.period], stretch, repeat];
    };
    const edges = new Map();
    const numbers = new Map();
    const key = (item) => {
      if (!numbers.has(item)) numbers.set(item, numbers.size);
      return numbers.get(item);
    };
    const join = (from, to, kind, value) => {
      const name = `${key(from)} ${key(to)} ${kind}`;
      if (!edges.has(name)) edges.set(name, { from, to, kind, value });
    };
    const given = new Map(); // value of an input or state -> the boxes that read it
    for (const node of graph.nodes) {
      const [to, stretch, repeat] = standing(node);
      if (repeat && stretch > 1 && stretch < repeat.count - 1 && stretch !== shown.get(repeat)) continue; // says what its neighbours say
      for (const value of new Set(node.reads)) {
        if (value === null) continue;
        const maker = graph.maker.get(value);
        if (!maker) {
          const input = graph.inputByName.get(value);
          if (input && (input.role === "input" || input.role === "state")) {
            if (!given.has(value)) given.set(value, new Set());
            given.get(value).add(to);
          }
          continue;
        }
        const [from, before, other] = standing(maker);
        if (repeat && other === repeat && before !== stretch) join(from, to, "carried", value);
        else if (from !== to) join(from, to, "flow", value);
      }
    }
    const lone = new Map(); // reader -> what it alone reads
    for (const [value, readers] of given) {
      const [reader] = readers;
      if (readers.size > 1 || reader.repeat || graph.outputSet.has(value)) continue;
      if (!lone.has(reader)) lone.set(reader, []);
      lone.get(reader).push(value);
    }
    for (const [reader, values] of [...lone].slice(0, MOST_PILLS)) {
      const groups = values.length > MOST_BESIDE ? [values] : values.map((value) => [value]);
      for (const [value, ...more] of groups) {
        const input = graph.inputByName.get(value);
        const made = more.length ? pill("input", value, shortened([value, ...more].join(", "), 40), reader.block, `${more.length + 1} inputs`) : pill(input.role, value, `${input.role}  ${shape(input.type)}`, reader.block);
        if (more.length) made.name = reader.name;
        into[reader.block].unshift(made);
        join(made, reader, "flow", value);
      }
    }
    const alone = graph.outputs.filter((value) => graph.maker.has(value) && !graph.home[graph.maker.get(value).index]);
    for (const value of alone.slice(0, MOST_PILLS)) {
      const from = itemOf[graph.maker.get(value).index];
      const made = pill("output", value, `output  ${shape(graph.types.get(value))}`, from.block);
      into[from.block].push(made);
      join(from, made, "flow", value);
    }
    for (const block of into) for (const item of block) items.push(item);
    const found = [...edges.values()];
    for (const edge of found) {
      if (edge.kind === "flow" && edge.to.block - edge.from.block > 1) edge.kind = "arc";
      if (edge.kind === "flow" && edge.to.block < edge.from.block) edge.kind = "arc";
    }
    let size = ostinato.layout(items, found, framed, LONGEST);
    const bend = () => {
      const far = found.filter((edge) => edge.kind === "flow" && edge.to.rank - edge.from.rank > LONGEST);
      for (const edge of far) edge.kind = "arc";
      return far.length;
    };
    // without the far ones boxes may lie in other layers
    if (bend()) {
      size = ostinato.layout(items, found, framed, LONGEST);
      bend();
    }
    for (const frame of frames) {
      const boxes = frame.items;
      const least = (of) => boxes.reduce((found, item) => Math.min(found, of(item)), Infinity);
      frame.left = least((item) => item.x - item.w / 2) - 22;
      frame.right = 22 - least((item) => -item.x - item.w / 2);
      const short = Math.max(0, NARROWEST - (frame.right - frame.left)) / 2;
      frame.left -= short;
      frame.right += short;
      frame.top = least((item) => item.y - item.h / 2) - ostinato.layout.frameTop + 6;
      frame.bottom = ostinato.layout.frameBottom - 4 - least((item) => -item.y - item.h / 2);
    }
    for (const item of items) {
      item.touching = [];
    }
    for (const edge of found) {
      edge.from.touching.push(edge);
      edge.to.touching.push(edge);
      finish(edge, size.width);
    }
    const arcs = found.filter((edge) => edge.kind === "arc").length;
    return { items, edges: found, arcs, frames, itemOf, ...size };
  };

  // The points that an edge is drawn through, and what it takes of the plane.
  function finish(edge, right) {
    const { from, to } = edge;
    if (edge.kind === "flow") {
      const line = [[from.x, from.y + from.h / 2], ...edge.points, [to.x, to.y - to.h / 2]];
      edge.line = line;
      edge.low = line[0][1];
      edge.high = line[line.length - 1][1];
      return;
    }
    const side = edge.kind === "arc" ? 1 : -1;
    const x = (item) => item.x + (side * item.w) / 2;
    const reach = Math.min(320, 40 + Math.abs(to.y - from.y) * 0.14);
    const bend = side > 0 ? Math.max(x(from), x(to)) + reach : Math.min(x(from), x(to)) - reach;
    edge.arc = [x(from), from.y, bend, from.y, bend, to.y, x(to), to.y];
    edge.low = Math.min(from.y, to.y);
    edge.high = Math.max(from.y, to.y);
    edge.right = right;
  }
})();
