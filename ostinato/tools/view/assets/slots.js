// The slots of one arena as a map: steps across, bytes upwards. Painting goes straight into the pixels of an image.
//
// Slots of a proven plan share no byte at any step, so that all of them together paint each pixel once, however many there are: the cost of a frame is bounded
// by the size of the picture, and no cache of tiles is needed. A slot that is smaller than a pixel still gets one, so that nothing vanishes; of several in one
// pixel the last stays.
"use strict";

ostinato.SlotMap = class SlotMap {
  static made = new WeakMap();

  /** The map of an arena, made once. */
  static of(plan, arena = 0) {
    if (!SlotMap.made.has(plan)) SlotMap.made.set(plan, []);
    const maps = SlotMap.made.get(plan);
    maps[arena] = maps[arena] || new SlotMap(plan, arena);
    return maps[arena];
  }

  /** The slots of arena `arena` of a page's plan. */
  constructor(plan, arena = 0) {
    const all = plan.slots,
      chosen = [];
    for (let slot = 0; slot < all.first.length; slot += 1) if (all.arena[slot] === arena) chosen.push(slot);
    chosen.sort((a, b) => all.first[a] - all.first[b]);
    const column = (values) => Float64Array.from(chosen, (slot) => values[slot]);
    this.plan = plan;
    this.arena = plan.arenas[arena];
    this.slots = chosen; // place in this map -> slot of the plan
    this.place = new Map(chosen.map((slot, place) => [slot, place]));
    [this.first, this.last, this.offset, this.bytes] = [all.first, all.last, all.offset, all.bytes].map(column);
    this.steps = this.last.reduce((most, last) => Math.max(most, last), Math.max(1, plan.steps.node.length));
    this.height = Math.max(1, this.arena.arena_bytes, this.arena.lower_bound);
    this.longest = this.last.reduce((most, last, place) => Math.max(most, last - this.first[place]), 0);
  }

  /** A view moved and cut to lie within `whole`, with room for some steps and bytes. */
  static within(view, whole) {
    const range = (low, high, end, least) => {
      const size = Math.min(end, Math.max(least, high - low)),
        start = Math.min(end - size, Math.max(0, (low + high - size) / 2));
      return [start, start + size];
    };
    const [left, right] = range(view.left, view.right, whole.right, 3),
      [bottom, top] = range(view.bottom, view.top, whole.top, 1024);
    return { left, right, bottom, top };
  }

  get whole() {
    return { left: 0, right: this.steps, bottom: 0, top: this.height * 1.03 };
  }

  /** Places [from, to) outside of which no slot lives at a step of [left, right): slots are in the order of their first steps. */
  span(left, right) {
    return [this.bound(left - this.longest), this.bound(right)];
  }

  /** How many slots begin before a step. */
  bound(step) {
    let low = 0,
      high = this.first.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.first[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Paints what lies in `view` into an image of `width` by `height` pixels and returns how many rectangles that were. */
  paint(pixels, width, height, view, fills, edges) {
    const across = width / (view.right - view.left),
      up = height / (view.top - view.bottom);
    const [from, to] = this.span(view.left, view.right);
    let drawn = 0;
    for (let place = from; place < to; place += 1) {
      const last = this.last[place],
        low = this.offset[place],
        high = low + this.bytes[place];
      if (last <= view.left || high <= view.bottom || low >= view.top) continue;
      const x0 = Math.min(width - 1, Math.max(0, Math.round((this.first[place] - view.left) * across)));
      const x1 = Math.min(width, Math.max(x0 + 1, Math.round((last - view.left) * across)));
      const y0 = Math.min(height - 1, Math.max(0, Math.round((view.top - high) * up)));
      const y1 = Math.min(height, Math.max(y0 + 1, Math.round((view.top - low) * up)));
      const fill = fills[place],
        edge = edges[place];
      drawn += 1;
      if (x1 - x0 < 3 || y1 - y0 < 3) {
        // too small for an edge of its own
        for (let y = y0, row = y0 * width; y < y1; y += 1, row += width) {
          if (x1 - x0 < 12) for (let x = row + x0; x < row + x1; x += 1) pixels[x] = fill;
          else pixels.fill(fill, row + x0, row + x1);
        }
        continue;
      }
      for (let y = y0, row = y0 * width; y < y1 - 1; y += 1, row += width) {
        pixels[row + x0] = edge;
        if (x1 - x0 < 12) for (let x = row + x0 + 1; x < row + x1; x += 1) pixels[x] = fill;
        else pixels.fill(fill, row + x0 + 1, row + x1);
      }
      pixels.fill(edge, (y1 - 1) * width + x0, (y1 - 1) * width + x1);
    }
    return drawn;
  }

  /** The place of the slot that has a byte at a step, -1 where nobody does. */
  at(step, byte) {
    const [from, to] = this.span(Math.floor(step), Math.floor(step) + 1);
    for (let place = from; place < to; place += 1) {
      const low = this.offset[place];
      if (this.first[place] <= step && step < this.last[place] && low <= byte && byte < low + this.bytes[place]) return place;
    }
    return -1;
  }

  /** Places of the slots that are live at a step, the largest first. */
  tenants(step) {
    const [from, to] = this.span(step, step + 1),
      found = [];
    for (let place = from; place < to; place += 1) if (this.first[place] <= step && step < this.last[place]) found.push(place);
    return found.sort((a, b) => this.bytes[b] - this.bytes[a]);
  }

  /** Bytes live at a step, and the end of the highest of them. */
  usage(step) {
    const { step: steps, live, extent } = this.arena.usage;
    let low = 0,
      high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low ? { live: live[low - 1], extent: extent[low - 1] } : { live: 0, extent: 0 };
  }

  /** The values of a slot: {name, type, made, read}, steps as positions. */
  values(place) {
    const { first_value: starts, values } = this.plan.slots,
      slot = this.slots[place],
      found = [];
    for (let at = starts[slot]; at < starts[slot + 1]; at += 1) {
      found.push({
        name: ostinato.text(values.name[at]),
        type: ostinato.text(values.type[at]),
        offset: values.offset[at],
        bytes: values.bytes[at],
        made: values.made[at],
        read: values.read[at],
      });
    }
    return found;
  }

  /** Which of a slot's values it holds at a step: the last that was made by then. */
  held(values, step) {
    return values.reduce((last, value) => (value.made >= 0 && value.made <= step ? value : last), values[0]);
  }

  role(place) {
    return this.plan.roles[this.plan.slots.role[this.slots[place]]];
  }

  /** The node of a step. */
  node(step) {
    return ostinato.text(this.plan.steps.node[step]);
  }

  /** Places of the slots that the steps of a node write and read: {made, read}. */
  touched(node) {
    const made = new Set(),
      read = new Set();
    const { first_value: starts, values } = this.plan.slots;
    const steps = new Set(),
      name = ostinato.data.strings.indexOf(node);
    this.plan.steps.node.forEach((id, step) => {
      if (id === name) steps.add(step);
    });
    for (const [place, slot] of this.slots.entries()) {
      for (let at = starts[slot]; at < starts[slot + 1]; at += 1) {
        if (values.name[at] === name || steps.has(values.made[at])) made.add(place);
        else if (values.read[at].some((step) => steps.has(step))) read.add(place);
      }
    }
    return { made, read, steps };
  }
};
