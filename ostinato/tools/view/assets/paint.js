// The picture of the arena panel: the map, the occupancy above it, the band of layers, axes and lines, and what is marked.
"use strict";

(() => {
  const { bytes, count, css, element } = ostinato;
  const plots = ostinato.plots;

  /** Draws the panel: everything that lies in its view. */
  ostinato.paintArena = (panel, width, height) => {
    const { LEFT, RIGHT, TOP, FOOT, BAND } = ostinato.arenaLayout;
    const { context, ratio } = plots.fitted(panel.canvas, width, height);
    const curve = Math.round(Math.max(30, Math.min(96, height * 0.2)));
    const top = TOP + curve + BAND + 6;
    panel.box = { left: LEFT, top, width: width - LEFT - RIGHT, height: height - top - FOOT };
    context.clearRect(0, 0, width, height);
    context.font = `11px ${css("--sans")}`;
    paintSlots(panel, context, ratio);
    paintGrid(panel, context);
    paintCurve(panel, context, TOP, curve);
    paintBand(panel, context, TOP + curve + 3, BAND);
    paintLabels(panel, context);
    paintMarks(panel, context, TOP, curve);
  };

  const x = ({ box, view }, step) => box.left + ((step - view.left) / (view.right - view.left)) * box.width;
  const y = ({ box, view }, byte) => box.top + ((view.top - byte) / (view.top - view.bottom)) * box.height;

  function clipped(context, left, top, width, height, draw) {
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    draw();
    context.restore();
  }

  function paintSlots(panel, context, ratio) {
    const { box } = panel,
      width = Math.round(box.width * ratio),
      height = Math.round(box.height * ratio);
    if (!panel.image || panel.image.width !== width || panel.image.height !== height) {
      panel.image = new ImageData(width, height);
      panel.pixels = new Uint32Array(panel.image.data.buffer);
    }
    panel.pixels.fill(panel.background);
    panel.drawn = panel.map.paint(panel.pixels, width, height, panel.view, panel.fills, panel.edges);
    context.putImageData(panel.image, Math.round(box.left * ratio), Math.round(box.top * ratio));
  }

  function line(context, x0, y0, x1, y1) {
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  function paintGrid(panel, context) {
    const { box, view } = panel,
      right = box.left + box.width,
      foot = box.top + box.height;
    context.fillStyle = css("--soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const at of plots.byteTicks(view.bottom, view.top, Math.max(2, box.height / 44))) {
      const place = Math.round(y(panel, at)) + 0.5;
      context.strokeStyle = css("--line");
      line(context, box.left - 4, place, box.left, place);
      if (place > box.top + 4) context.fillText(bytes(at), box.left - 7, place);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const at of plots.ticks(view.left, view.right, box.width / 90, 1)) {
      const place = Math.round(x(panel, at)) + 0.5;
      line(context, place, foot, place, foot + 4);
      context.fillText(count(at), Math.min(right - 8, place), foot + 6);
    }
    context.textAlign = "left";
    context.fillText("step", 8, foot + 6);
    context.strokeRect(box.left - 0.5, box.top - 0.5, box.width + 1, box.height + 1);
  }

  /** The occupancy: live bytes of each step filled, the end of the highest live byte as a line; of several steps in a pixel the most. */
  function paintCurve(panel, context, top, height) {
    const { box, view, map } = panel,
      usage = map.arena.usage,
      most = map.height * 1.06,
      number = usage.step.length;
    const up = (nbytes) => top + height - (nbytes / most) * height;
    context.fillStyle = css("--soft");
    context.textAlign = "right";
    context.textBaseline = "top";
    context.fillText(bytes(map.arena.arena_bytes), box.left - 7, top);
    context.textBaseline = "bottom";
    context.fillText("live", box.left - 7, top + height);
    clipped(context, box.left, top, box.width, height, () => {
      const columns = Math.ceil(box.width),
        live = new Float64Array(columns),
        extent = new Float64Array(columns);
      const column = (step) => Math.floor(((step - view.left) / (view.right - view.left)) * columns);
      for (let at = 0; at < number; at += 1) {
        const next = at + 1 < number ? usage.step[at + 1] : map.steps;
        if (next <= view.left || usage.step[at] >= view.right) continue;
        const from = Math.max(0, column(usage.step[at])),
          to = Math.min(columns - 1, Math.max(from, column(next) - 1));
        for (let place = from; place <= to; place += 1) {
          live[place] = Math.max(live[place], usage.live[at]);
          extent[place] = Math.max(extent[place], usage.extent[at]);
        }
      }
      context.beginPath();
      context.moveTo(box.left, top + height);
      live.forEach((nbytes, place) => {
        context.lineTo(box.left + place, up(nbytes));
        context.lineTo(box.left + place + 1, up(nbytes));
      });
      context.lineTo(box.left + columns, top + height);
      context.fillStyle = css("--curve");
      context.fill();
      context.beginPath();
      extent.forEach((nbytes, place) => {
        context.lineTo(box.left + place, up(nbytes));
        context.lineTo(box.left + place + 1, up(nbytes));
      });
      context.strokeStyle = css("--extent");
      context.lineWidth = 1;
      context.stroke();
      context.setLineDash([6, 4]);
      context.strokeStyle = css("--bound");
      line(context, box.left, up(map.arena.lower_bound), box.left + box.width, up(map.arena.lower_bound));
      context.setLineDash([]);
    });
    context.strokeStyle = css("--line");
    context.strokeRect(box.left - 0.5, top - 0.5, box.width + 1, height + 1);
  }

  /** Which layer each step belongs to, as a band between occupancy and map. */
  function paintBand(panel, context, top, height) {
    const { box, view, map, layers } = panel,
      steps = map.plan.steps.layer;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.font = `10px ${css("--sans")}`;
    clipped(context, box.left, top, box.width, height, () => {
      for (let from = Math.max(0, Math.floor(view.left)); from < steps.length && from < view.right;) {
        let to = from + 1;
        while (to < steps.length && steps[to] === steps[from]) to += 1;
        const left = x(panel, from),
          width = x(panel, to) - left;
        if (steps[from] >= 0) {
          context.fillStyle = plots.colours.layer(steps[from], layers);
          context.globalAlpha = 0.75;
          context.fillRect(left, top, Math.max(1, width - 1), height);
          context.globalAlpha = 1;
          const shown = Math.max(left, box.left),
            room = Math.min(left + width, box.left + box.width) - shown;
          context.fillStyle = "#0b1016";
          if (room > 46) context.fillText(`layer ${steps[from]}`, shown + room / 2, top + height / 2 + 0.5);
          else if (room > 13) context.fillText(steps[from], shown + room / 2, top + height / 2 + 0.5);
        }
        from = to;
      }
    });
    context.font = `11px ${css("--sans")}`;
  }

  /** Names in the slots that have room for one, the largest first. */
  function paintLabels(panel, context) {
    const { box, view, map } = panel,
      found = [];
    const [from, to] = map.span(view.left, view.right);
    for (let place = from; place < to; place += 1) {
      const left = Math.max(box.left, x(panel, map.first[place])),
        right = Math.min(box.left + box.width, x(panel, map.last[place]));
      const top = Math.max(box.top, y(panel, map.offset[place] + map.bytes[place])),
        foot = Math.min(box.top + box.height, y(panel, map.offset[place]));
      if (right - left > 44 && foot - top > 12) found.push([left, right, top, foot, place]);
    }
    found.sort((a, b) => (b[1] - b[0]) * (b[3] - b[2]) - (a[1] - a[0]) * (a[3] - a[2]));
    context.textAlign = "left";
    context.textBaseline = "middle";
    const inks = ["rgba(255, 255, 255, 0.94)", "rgba(10, 16, 22, 0.92)", css("--soft")];
    for (const [left, right, top, foot, place] of found.slice(0, ostinato.arenaLayout.MOST_LABELS)) {
      const middle = (top + foot) / 2,
        name = ostinato.text(map.plan.slots.values.name[map.plan.slots.first_value[map.slots[place]]]).replace(/^#/, "");
      context.fillStyle = inks[panel.dark[place]];
      context.fillText(plots.cut(name, right - left - 9), left + 5, foot - top > 27 ? middle - 7 : middle);
      if (foot - top > 27) {
        context.globalAlpha = 0.75;
        context.fillText(plots.cut(bytes(map.bytes[place]), right - left - 9), left + 5, middle + 7);
        context.globalAlpha = 1;
      }
    }
  }

  function outline(panel, context, place, colour, dash, width) {
    const { map } = panel,
      left = x(panel, map.first[place]),
      top = y(panel, map.offset[place] + map.bytes[place]);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.strokeRect(left, top, Math.max(2, x(panel, map.last[place]) - left), Math.max(2, y(panel, map.offset[place]) - top));
    context.setLineDash([]);
    context.lineWidth = 1;
  }

  /** A line across the map with its name at its end. */
  function level(panel, context, nbytes, colour, dash, name) {
    const { box } = panel,
      place = y(panel, nbytes);
    if (place < box.top || place > box.top + box.height) return;
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.5;
    context.setLineDash(dash);
    line(context, box.left, place, box.left + box.width, place);
    context.setLineDash([]);
    context.lineWidth = 1;
    if (!name) return;
    const wide = context.measureText(name).width + 8,
      right = box.left + box.width;
    context.fillStyle = css("--paper");
    context.globalAlpha = 0.85;
    context.fillRect(right - wide - 4, place + 3, wide, 15);
    context.globalAlpha = 1;
    context.fillStyle = colour;
    context.textAlign = "right";
    context.textBaseline = "top";
    context.fillText(name, right - 8, place + 5);
  }

  function column(panel, context, step, top, foot, colour, name, above) {
    const { box } = panel,
      left = x(panel, step),
      right = x(panel, step + 1),
      middle = (left + right) / 2;
    if (middle < box.left || middle > box.left + box.width) return;
    context.fillStyle = colour;
    context.globalAlpha = 0.16;
    context.fillRect(left, top, Math.max(1, right - left), foot - top);
    context.globalAlpha = 1;
    context.strokeStyle = colour;
    context.setLineDash([2, 3]);
    line(context, Math.round(middle) + 0.5, top, Math.round(middle) + 0.5, foot);
    context.setLineDash([]);
    context.textBaseline = "top";
    const wide = context.measureText(name).width,
      before = middle + wide + 8 > box.left + box.width;
    context.textAlign = before ? "right" : "left";
    context.fillText(name, middle + (before ? -5 : 5), above);
  }

  function paintMarks(panel, context, top, curve) {
    const { box, map, selected } = panel,
      stats = map.arena,
      foot = box.top + box.height;
    clipped(context, box.left, top, box.width, foot - top, () => {
      column(panel, context, stats.peak_step, top, foot, css("--peak"), "peak", top + 3);
      if (panel.step !== stats.peak_step)
        column(panel, context, panel.step, top, foot, css("--accent"), `step ${panel.step}`, top + Math.min(17, curve - 14));
    });
    clipped(context, box.left, box.top, box.width, box.height, () => {
      const close = stats.arena_bytes === stats.lower_bound;
      level(panel, context, stats.arena_bytes, css("--top"), [], close ? "" : `arena ${bytes(stats.arena_bytes)}`);
      level(
        panel,
        context,
        stats.lower_bound,
        css("--bound"),
        [7, 5],
        close ? `arena = lower bound, ${bytes(stats.lower_bound)}` : `lower bound ${bytes(stats.lower_bound)}`,
      );
      if (selected) {
        for (const place of selected.read) outline(panel, context, place, css("--ink"), [4, 3], 1.5);
        for (const place of selected.made) outline(panel, context, place, css("--accent"), [], 2.5);
      }
      for (const place of panel.pointed) outline(panel, context, place, css("--ink"), [], 1.5);
      if (panel.hovered >= 0) outline(panel, context, panel.hovered, css("--ink"), [], 1.5);
    });
  }

  /** The whole arena, small, with a frame around what the map shows. */
  ostinato.paintOverview = (panel, width) => {
    const height = 74,
      { context, ratio } = plots.fitted(panel.small, width, height),
      { map, view } = panel,
      whole = map.whole;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (!panel.overview || panel.overview.width !== w) {
      panel.overview = new ImageData(w, h);
      const pixels = new Uint32Array(panel.overview.data.buffer);
      pixels.fill(panel.background);
      map.paint(pixels, w, h, whole, panel.fills, panel.fills);
    }
    context.putImageData(panel.overview, 0, 0);
    const across = width / whole.right,
      up = height / whole.top;
    const frame = [view.left * across, height - view.top * up, (view.right - view.left) * across, (view.top - view.bottom) * up];
    context.fillStyle = css("--paper");
    context.globalAlpha = 0.55;
    context.fillRect(0, 0, width, frame[1]);
    context.fillRect(0, frame[1] + frame[3], width, height);
    context.fillRect(0, frame[1], frame[0], frame[3]);
    context.fillRect(frame[0] + frame[2], frame[1], width, frame[3]);
    context.globalAlpha = 1;
    context.strokeStyle = css("--ink");
    context.strokeRect(
      Math.max(0.5, frame[0]),
      Math.max(0.5, frame[1]),
      Math.max(3, Math.min(width - 1, frame[2])),
      Math.max(3, Math.min(height - 1, frame[3])),
    );
  };

  /** What the tip says of a slot that lies under the pointer at a step. */
  ostinato.slotTip = (map, place, step) => {
    const { fact } = plots,
      values = map.values(place),
      slot = map.slots[place],
      end = map.offset[place] + map.bytes[place];
    const held = map.held(values, step);
    const read = values.filter((value) => value === held || value.made < 0).flatMap((value) => value.read); // by views of it too
    const readers = [...new Set(read)].sort((a, b) => a - b).map((position) => map.node(position));
    const layer = map.plan.slots.layer[slot];
    const others = values.filter((value) => value !== held).map((value) => value.name);
    return [
      element("b", {}, held.name.replace(/^#/, "")),
      element("div.soft", {}, [map.role(place), layer >= 0 ? `layer ${layer}` : "", held.type].filter(Boolean).join(" · ")),
      fact("bytes", `${bytes(map.bytes[place])}, [${count(map.offset[place])}, ${count(end)})`),
      fact("steps", `${map.first[place]} to ${map.last[place] - 1}`),
      held.made >= 0 ? fact("made by", `${map.node(held.made)} (step ${held.made})`) : null,
      readers.length ? fact("read by", readers.slice(0, 3).join(", ") + (readers.length > 3 ? ` and ${readers.length - 3} more` : "")) : null,
      others.length ? fact("shared with", others.slice(0, 3).join(", ") + (others.length > 3 ? ` and ${others.length - 3} more` : "")) : null,
    ];
  };
})();
