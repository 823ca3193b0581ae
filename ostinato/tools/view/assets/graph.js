// The graph panel: boxes in layers on a canvas, of which only what is visible is drawn. Repeated layers stand in one frame, with buttons for which of them is
// shown and for all of them. Drag and wheel move, Ctrl and wheel zooms, a click selects, the arrow keys follow the edges of the selected node.
"use strict";

(() => {
  const MOST_PASSING = 120;
  const view = { x: 0, y: 0, scale: 1 };
  let canvas, context, pen, place, over, overview, tip;
  let graph = null, scene = null, hovered = null, matches = null, drawn = 0, frame = 0, before = null;
  const shownOf = new WeakMap(); // graph -> its map from a repeat to the shown stretch

  const shown = () => {
    if (!shownOf.has(graph)) shownOf.set(graph, new Map(graph.repeats.map((repeat) => [repeat, 0])));
    return shownOf.get(graph);
  };

  // What each node takes, where it was measured.
  function taken() {
    const { plan, profile } = ostinato.bus.entry();
    const found = new Map();
    if (plan && profile) plan.steps.node.forEach((node, position) => profile.seconds[position] >= 0 && found.set(ostinato.text(node), profile.seconds[position]));
    return found;
  }

  // --- where things are

  function compose() {
    scene = ostinato.scene(graph, shown(), taken());
    over.replaceChildren();
    redraw();
  }

  function open() {
    graph = ostinato.graph(ostinato.bus.entry());
    hovered = null;
    compose();
    fit();
  }

  function fit(whole = false) {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    const all = Math.min((width - 40) / scene.width, (height - 40) / scene.height, 1.1);
    const across = Math.min(0.95, Math.max(0.62, (width - 60) / scene.width));
    view.scale = whole ? Math.max(0.08, all) : Math.max(all, across);
    const middle = whole ? scene.width / 2 : scene.items.slice(0, 40).reduce((sum, item) => sum + item.x, 0) / Math.max(1, Math.min(40, scene.items.length));
    view.x = width / 2 - (view.scale * scene.width + 40 < width ? scene.width / 2 : middle) * view.scale;
    view.y = scene.height * view.scale < height ? (height - scene.height * view.scale) / 2 : 20;
    redraw();
  }

  // All of it on a page, and afterwards what was looked at before.
  function onPaper(on) {
    if (on) {
      before = { ...view };
      resize();
      fit(true);
    } else Object.assign(view, before);
    draw();
  }

  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const scale = Math.min(3, Math.max(0.02, view.scale * factor));
    view.x = x - ((x - view.x) * scale) / view.scale;
    view.y = y - ((y - view.y) * scale) / view.scale;
    view.scale = scale;
    redraw();
  }

  function pan(dx, dy) {
    view.x += dx;
    view.y += dy;
    redraw();
  }

  // Brings a box into the middle unless it can be seen already.
  function reveal(item) {
    if (view.scale < 0.5) view.scale = 0.8;
    const x = item.x * view.scale + view.x, y = item.y * view.scale + view.y;
    const inside = x > 60 && x < canvas.clientWidth - 60 && y > 60 && y < canvas.clientHeight - 60;
    if (inside) return;
    view.x = canvas.clientWidth / 2 - item.x * view.scale;
    view.y = canvas.clientHeight / 2 - item.y * view.scale;
  }

  function itemAt(x, y) {
    const px = (x - view.x) / view.scale, py = (y - view.y) / view.scale;
    return scene.items.find((item) => Math.abs(px - item.x) <= item.w / 2 && Math.abs(py - item.y) <= item.h / 2) || null;
  }

  const itemOf = (name) => {
    const node = graph.byName.get(name);
    return node ? scene.itemOf[node.index] : scene.items.find((item) => item.kind !== "node" && item.name === name) || null;
  };

  function turn(repeat, stretch) {
    shown().set(repeat, stretch);
    compose();
    const chosen = ostinato.bus.selection && graph.byName.get(ostinato.bus.selection.node);
    if (chosen && graph.home[chosen.index] === repeat && stretch !== "all") ostinato.bus.select({ node: ostinato.twin(graph, chosen, stretch).name });
  }

  function selected(chosen) {
    if (chosen) {
      const node = graph.byName.get(chosen.node);
      const repeat = node && graph.home[node.index];
      if (repeat && shown().get(repeat) !== "all" && shown().get(repeat) !== ostinato.stretchOf(graph, node)) {
        shown().set(repeat, ostinato.stretchOf(graph, node));
        compose();
      }
      const item = itemOf(chosen.node);
      if (item) reveal(item);
    }
    redraw();
  }

  // --- frames: the buttons of a repeat

  function header(found) {
    const { element } = ostinato;
    const { repeat, stretch, all } = found;
    const step = (to) => turn(repeat, (to + repeat.count) % repeat.count);
    const made = element("div.frame-head", {},
      element("strong", {}, `× ${repeat.count}`),
      all ? null : element("button", { title: "The stretch before", "aria-label": "Previous", onclick: () => step(stretch - 1) }, "‹"),
      element("span.frame-title", {}, `${found.title || "stretch"}${found.title ? "" : ` ${stretch}`}`),
      all ? null : element("button", { title: "The stretch after", "aria-label": "Next", onclick: () => step(stretch + 1) }, "›"),
      element("button", { title: all ? "One stretch stands for all" : `Draw all ${repeat.count}`, "aria-label": all ? "Collapse" : "Expand", "aria-expanded": String(all), onclick: () => turn(repeat, all ? stretch : "all") }, all ? "collapse" : "expand"),
    );
    found.head = made;
    return made;
  }

  // --- drawing

  function redraw() {
    if (!frame) frame = requestAnimationFrame(draw);
  }

  function resize() {
    const ratio = ostinato.ratio();
    const [width, height] = [Math.round(place.clientWidth * ratio), Math.round(place.clientHeight * ratio)];
    if (canvas.width !== width || canvas.height !== height) {
      const first = !canvas.width || !canvas.height;
      [canvas.width, canvas.height] = [width, height];
      if (scene && first) fit();
    }
  }

  function draw() {
    frame = 0;
    resize();
    const ratio = ostinato.ratio();
    const { css } = ostinato;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = css("--paper");
    context.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    context.translate(view.x, view.y);
    context.scale(view.scale, view.scale);
    const top = -view.y / view.scale, bottom = top + canvas.clientHeight / view.scale;
    const left = -view.x / view.scale, right = left + canvas.clientWidth / view.scale;
    const chosen = ostinato.bus.selection ? itemOf(ostinato.bus.selection.node) : null;
    const bright = new Set([chosen, hovered].filter(Boolean));
    for (const found of scene.frames) if (found.bottom >= top && found.top <= bottom) pen.frame(found);
    const inside = (y) => y >= top && y <= bottom;
    for (const edge of scene.edges) {
      if (edge.high < top || edge.low > bottom || bright.has(edge.from) || bright.has(edge.to)) continue;
      // of very many arcs those that only pass by say nothing
      if (scene.arcs > MOST_PASSING && edge.kind === "arc" && !inside(edge.low) && !inside(edge.high)) continue;
      pen.edge(edge, matches !== null);
    }
    for (const edge of scene.edges) if (bright.has(edge.from) || bright.has(edge.to)) pen.edge(edge, false, bright.has(edge.to) ? "--accent" : "--warn");
    const near = new Set();
    for (const item of bright) for (const edge of item.touching) near.add(edge.from).add(edge.to);
    drawn = 0;
    for (const item of scene.items) {
      if (item.y + item.h < top || item.y - item.h > bottom || item.x + item.w / 2 < left || item.x - item.w / 2 > right) continue;
      drawn++;
      pen.item(item, { chosen: item === chosen, near: near.has(item), hovered: item === hovered, match: matches && matches.has(item.name), searching: matches !== null });
    }
    heads();
    miniature();
    canvas.dataset.drawn = drawn;
    canvas.dataset.frames = scene.frames.length;
    if (!canvas.dataset.ready) {
      canvas.dataset.ready = "yes";
      performance.mark("ostinato-graph");
    }
  }

  function heads() {
    for (const found of scene.frames) {
      const x = found.left * view.scale + view.x, y = found.top * view.scale + view.y;
      const out = y > canvas.clientHeight || found.bottom * view.scale + view.y < 0 || view.scale < 0.12;
      if (out) {
        if (found.head) found.head.remove();
        found.head = null;
        continue;
      }
      if (!found.head) over.append(header(found));
      // it stays in sight while the frame does
      const lowest = found.bottom * view.scale + view.y - 34;
      found.head.style.transform = `translate(${Math.max(4, x + 8)}px, ${Math.min(Math.max(y + 5, 4), lowest)}px) scale(${Math.min(1, Math.max(0.7, view.scale * 1.1))})`;
    }
  }

  function miniature() {
    const width = overview.clientWidth, height = overview.clientHeight;
    const hide = scene.width * view.scale <= canvas.clientWidth && scene.height * view.scale <= canvas.clientHeight;
    overview.hidden = hide;
    if (hide || !width) return;
    const ratio = ostinato.ratio();
    if (overview.width !== width * ratio) [overview.width, overview.height] = [width * ratio, height * ratio];
    const scale = Math.min((width - 12) / scene.width, (height - 12) / scene.height);
    const shift = (width - scene.width * scale) / 2;
    if (!scene.small || scene.small.theme !== ostinato.theme() || scene.small.height !== overview.height) {
      scene.small = Object.assign(document.createElement("canvas"), { width: overview.width, height: overview.height });
      scene.small.theme = ostinato.theme();
      const once = scene.small.getContext("2d");
      once.setTransform(ratio, 0, 0, ratio, shift * ratio, 6 * ratio);
      for (const item of scene.items) {
        once.fillStyle = ostinato.colour(item.op);
        once.fillRect((item.x - item.w / 2) * scale, (item.y - item.h / 2) * scale, Math.max(1.5, item.w * scale), Math.max(1, item.h * scale));
      }
    }
    const pen = overview.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, overview.width, overview.height);
    pen.drawImage(scene.small, 0, 0);
    pen.setTransform(ratio, 0, 0, ratio, shift * ratio, 6 * ratio);
    pen.strokeStyle = ostinato.css("--accent");
    pen.lineWidth = 1.5;
    const edge = (value, most) => Math.max(0, Math.min(most, value)) * scale;
    const [left, right] = [-view.x, canvas.clientWidth - view.x].map((x) => edge(x / view.scale, scene.width));
    const [top, bottom] = [-view.y, canvas.clientHeight - view.y].map((y) => edge(y / view.scale, scene.height));
    pen.strokeRect(left, top, right - left, bottom - top);
    overview.scaleBy = scale;
    overview.shiftBy = shift;
  }

  // --- input

  function listen() {
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
        if (!drag.moved && Math.hypot(dx, dy) < 4) return;
        Object.assign(drag, { x: event.clientX, y: event.clientY, moved: true });
        pan(dx, dy);
        return;
      }
      const found = itemAt(event.offsetX, event.offsetY);
      if (found === hovered) return;
      hovered = found;
      canvas.style.cursor = found ? "pointer" : "grab";
      hint(found, event);
      ostinato.bus.hover(found ? { node: found.name, from: "graph" } : null);
      redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const clicked = drag && !drag.moved;
      drag = null;
      if (!clicked) return;
      const found = itemAt(event.offsetX, event.offsetY);
      ostinato.bus.select(found ? { node: found.name } : null);
      canvas.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointerleave", () => {
      hovered = null;
      tip.hidden = true;
      redraw();
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      tip.hidden = true;
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 240), event.offsetX, event.offsetY);
      else if (event.shiftKey && !event.deltaX) pan(-event.deltaY, 0);
      else pan(-event.deltaX, -event.deltaY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const chosen = ostinato.bus.selection && graph.byName.get(ostinato.bus.selection.node);
      if (event.key === "+" || event.key === "=") zoom(1.25);
      else if (event.key === "-") zoom(0.8);
      else if (event.key === "0") fit(true);
      else if (chosen && event.key === "ArrowDown") follow(chosen.makes.flatMap((value) => graph.readers.get(value) || [])[0]);
      else if (chosen && event.key === "ArrowUp") follow(chosen.reads.map((value) => graph.maker.get(value)).find(Boolean));
      else if (chosen && event.key === "ArrowRight") follow(graph.nodes[chosen.index + 1]);
      else if (chosen && event.key === "ArrowLeft") follow(graph.nodes[chosen.index - 1]);
      else return;
      event.preventDefault();
    });
    const jump = (event) => {
      if (!event.buttons) return;
      view.x = canvas.clientWidth / 2 - ((event.offsetX - overview.shiftBy) / overview.scaleBy) * view.scale;
      view.y = canvas.clientHeight / 2 - ((event.offsetY - 6) / overview.scaleBy) * view.scale;
      redraw();
    };
    overview.addEventListener("pointerdown", jump);
    overview.addEventListener("pointermove", jump);
  }

  const follow = (node) => node && ostinato.bus.select({ node: node.name });

  function hint(item, event) {
    tip.hidden = !item;
    if (!item) return;
    const node = item.node;
    tip.replaceChildren(
      ostinato.element("strong", {}, item.name),
      ostinato.element("div.soft", {}, node ? `${node.op}${node.row ? ` @ ${node.row}` : ""}` : item.line),
      ...(node ? node.types.map((type) => ostinato.element("div.mono", {}, type)) : []),
      ...(node && node.line ? [ostinato.element("div.soft", {}, node.line)] : []),
    );
    const bounds = place.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX - bounds.left + 14, Math.max(0, bounds.width - 300))}px`;
    tip.style.top = `${Math.min(event.clientY - bounds.top + 16, Math.max(0, bounds.height - 90))}px`;
  }

  ostinato.panel("graph", {
    title: "Graph",
    dock: "upper",
    available: () => true,
    render(element, data, bus) {
      const make = ostinato.element;
      place = make("div.graph");
      canvas = make("canvas", { tabindex: "0", "aria-label": "The graph. Arrow keys follow the edges of the selected node." });
      over = make("div.frames");
      overview = make("canvas.overview", { "aria-label": "Overview" });
      tip = make("div.tip", { hidden: true });
      const tools = make("div.tools", {},
        make("button", { title: "Larger (+)", "aria-label": "Zoom in", onclick: () => zoom(1.25) }, "+"),
        make("button", { title: "Smaller (-)", "aria-label": "Zoom out", onclick: () => zoom(0.8) }, "−"),
        make("button", { title: "The whole graph (0)", onclick: () => fit(true) }, "fit"));
      place.append(canvas, over, overview, tools, tip);
      element.append(place);
      context = canvas.getContext("2d");
      pen = new ostinato.GraphPen(context, view);
      listen();
      bus.on("entry", open);
      bus.on("select", selected);
      bus.on("theme", redraw);
      bus.on("print", onPaper);
      bus.on("hover", (found) => {
        if (found && found.from === "graph") return;
        hovered = found ? itemOf(ostinato.resolver(bus.entry(), found.node)) : null;
        redraw();
      });
      bus.on("search", (found) => {
        matches = found;
        redraw();
      });
      new ResizeObserver(redraw).observe(place);
      open();
    },
  });

  // What stands in frames: of each how many stretches there are, and which one is drawn.
  ostinato.frames = () => scene.frames.map(({ repeat, stretch, title }) => ({ title, stretch, count: repeat.count }));

  // Where a node's box is on the screen, for whoever wants to point at it; null where it is not drawn.
  ostinato.boxOf = (name) => {
    const item = itemOf(name);
    if (!item) return null;
    const bounds = canvas.getBoundingClientRect();
    return { x: bounds.left + item.x * view.scale + view.x, y: bounds.top + item.y * view.scale + view.y, width: item.w * view.scale, height: item.h * view.scale };
  };
})();
