// Places boxes in layers: ostinato.layout(items, edges, framed, longest) -> {width, height}; items get x, y (centres), edges get `points`.
//
// item: {w, h, block}: blocks lie above one another in order, those with `frames[block]` get room for a frame.
// edge: {from, to, kind}: "flow" goes down through the layers and shapes the layout; "arc" and "carried" are drawn past it.
//
// Layers by longest path within a block, order within a layer by the mean place of the neighbours, and places by least squares: each box wants to be where its
// neighbours are (those on the longest path, if it is on it too, so that this stays straight), and boxes of a layer keep their distance (pool adjacent
// violators). An edge that passes layers gets a straight lane between their boxes. All passes are loops: a chain of any length works.
"use strict";

(() => {
  const GAP_X = 26, GAP_Y = 34, FRAME_TOP = 54, FRAME_BOTTOM = 22, LANE = 9, SWEEPS = 7, MOST_PASSED = 3000;

  function rank(items, edges, blocks) {
    const into = new Map(items.map((item) => [item, []]));
    const out = new Map(items.map((item) => [item, []]));
    for (const edge of edges) {
      if (edge.kind !== "flow" || edge.from.block !== edge.to.block) continue;
      into.get(edge.to).push(edge.from);
      out.get(edge.from).push(edge.to);
    }
    let base = 0;
    const bases = [];
    for (const members of blocks) {
      // members come in program order, which is topological
      for (const item of members) item.rank = into.get(item).reduce((most, before) => Math.max(most, before.rank + 1), 0);
      for (let place = members.length - 1; place >= 0; place--) {
        const item = members[place];
        if (into.get(item).length || !out.get(item).length) continue;
        item.rank = Math.max(0, out.get(item).reduce((least, after) => Math.min(least, after.rank), Infinity) - 1);
      }
      const height = members.reduce((most, item) => Math.max(most, item.rank + 1), 0);
      for (let place = members.length - 1; place >= 0; place--) {
        const item = members[place];
        item.depth = out.get(item).reduce((most, after) => Math.max(most, after.depth + 1), 0);
      }
      for (const item of members) item.spine = item.rank + item.depth === height - 1;
      for (const item of members) item.rank += base;
      bases.push(base);
      base += height;
    }
    return { bases, ranks: base };
  }

  // The items of every layer, each with its neighbours above and below.
  function layered(items, edges, ranks) {
    const layers = Array.from({ length: ranks }, () => []);
    for (const item of items) {
      layers[item.rank].push(item);
      item.above = [];
      item.below = [];
    }
    for (const edge of edges) {
      if (edge.kind !== "flow") continue;
      edge.from.below.push(edge.to);
      edge.to.above.push(edge.from);
    }
    return layers;
  }

  function order(layers) {
    const number = (layer) => layer.forEach((item, place) => (item.place = place - (layer.length - 1) / 2));
    const mean = (item, others) => (others.length ? others.reduce((sum, other) => sum + other.place, 0) / others.length : item.place);
    layers.forEach(number);
    for (let sweep = 0; sweep < SWEEPS; sweep++) {
      const down = sweep % 2 === 0;
      for (let step = 0; step < layers.length; step++) {
        const layer = layers[down ? step : layers.length - 1 - step];
        for (const item of layer) item.wanted = mean(item, down ? item.above : item.below);
        layer.sort((a, b) => a.wanted - b.wanted || a.place - b.place);
        number(layer);
      }
    }
  }

  // Places of one layer that are nearest to those wanted and keep their distances.
  function settle(layer, wanted, weights) {
    const groups = [];
    let offset = 0;
    layer.forEach((item, index) => {
      if (index) offset += (layer[index - 1].w + item.w) / 2 + GAP_X;
      item.offset = offset;
      let group = { sum: (wanted[index] - offset) * weights[index], weight: weights[index], from: index };
      while (groups.length && groups[groups.length - 1].sum / groups[groups.length - 1].weight > group.sum / group.weight) {
        const before = groups.pop();
        group = { sum: before.sum + group.sum, weight: before.weight + group.weight, from: before.from };
      }
      groups.push(group);
    });
    groups.forEach((group, number) => {
      const end = number + 1 < groups.length ? groups[number + 1].from : layer.length;
      for (let index = group.from; index < end; index++) layer[index].x = group.sum / group.weight + layer[index].offset;
    });
  }

  function places(layers) {
    for (const layer of layers) {
      let x = 0;
      for (const item of layer) {
        item.x = x + item.w / 2;
        x += item.w + GAP_X;
      }
      for (const item of layer) item.x -= (x - GAP_X) / 2;
    }
    for (let sweep = 0; sweep < SWEEPS; sweep++) {
      const down = sweep % 2 === 0;
      for (let step = 0; step < layers.length; step++) {
        const layer = layers[down ? step : layers.length - 1 - step];
        const wanted = layer.map((item) => {
          const first = down ? item.above : item.below;
          let others = first.length ? first : down ? item.below : item.above;
          const spine = item.spine ? others.filter((other) => other.spine) : [];
          if (spine.length) others = spine;
          return others.length ? others.reduce((sum, other) => sum + other.x, 0) / others.length : item.x;
        });
        settle(layer, wanted, layer.map((item) => (item.spine ? 8 : 1)));
      }
    }
  }

  // A straight way down for each edge that passes layers: the free place that is nearest to both ends. Short edges choose first. Those that pass more than
  // `longest` layers have none, nor those that pass so many boxes that looking at all of them for each edge would take minutes.
  function lanes(edges, layers, longest) {
    const blocked = layers.map((layer) => layer.map((item) => [item.x - item.w / 2 - LANE, item.x + item.w / 2 + LANE]));
    const long = edges.filter((edge) => edge.kind === "flow" && edge.to.rank - edge.from.rank > 1 && edge.to.rank - edge.from.rank <= longest);
    for (const edge of edges) edge.lane = null;
    for (const edge of long.sort((a, b) => a.to.rank - a.from.rank - (b.to.rank - b.from.rank))) {
      const taken = [];
      for (let at = edge.from.rank + 1; at < edge.to.rank; at++) for (const part of blocked[at]) taken.push(part);
      if (taken.length > MOST_PASSED) continue;
      taken.sort((a, b) => a[0] - b[0]);
      const wish = (edge.from.x + edge.to.x) / 2;
      let best = null, reach = -Infinity;
      for (const [from, to] of [...taken, [Infinity, Infinity]]) {
        if (from > reach) {
          const x = Math.min(Math.max(wish, reach), from);
          if (best === null || Math.abs(x - wish) < Math.abs(best - wish)) best = x;
        }
        reach = Math.max(reach, to);
      }
      edge.lane = best;
      for (let at = edge.from.rank + 1; at < edge.to.rank; at++) blocked[at].push([best - LANE, best + LANE]);
    }
  }

  ostinato.layout = (items, edges, framed, longest) => {
    const blocks = Array.from({ length: framed.length }, () => []);
    for (const item of items) blocks[item.block].push(item);
    const { bases, ranks } = rank(items, edges, blocks);
    const layers = layered(items, edges, ranks);
    order(layers);
    places(layers);
    let y = 0;
    const begins = new Set(bases.filter((base, block) => framed[block]));
    const ends = new Set(bases.map((base, block) => (framed[block] ? (block + 1 < bases.length ? bases[block + 1] : ranks) : -1)));
    layers.forEach((layer, at) => {
      if (ends.has(at)) y += FRAME_BOTTOM;
      if (begins.has(at)) y += FRAME_TOP;
      const height = layer.reduce((most, item) => Math.max(most, item.h), 0);
      for (const item of layer) item.y = y + height / 2;
      y += height + GAP_Y;
    });
    lanes(edges, layers, longest);
    const left = items.reduce((least, item) => Math.min(least, item.x - item.w / 2), Infinity);
    for (const item of items) item.x -= left;
    for (const edge of edges) {
      if (edge.lane === null) edge.points = [];
      else edge.points = [[edge.lane - left, edge.from.y + edge.from.h / 2 + GAP_Y], [edge.lane - left, edge.to.y - edge.to.h / 2 - GAP_Y]];
    }
    return { width: items.reduce((most, item) => Math.max(most, item.x + item.w / 2), 0), height: y };
  };
  ostinato.layout.frameTop = FRAME_TOP;
  ostinato.layout.frameBottom = FRAME_BOTTOM;
})();
