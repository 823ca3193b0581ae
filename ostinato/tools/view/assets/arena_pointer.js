// The pointer and the keys over the arena's map: zoom, pan, tips, and clicks that select.
"use strict";

ostinato.ArenaPointer = class ArenaPointer {
  constructor(panel) {
    this.panel = panel;
    this.drag = null;
    const { canvas, small } = panel;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.drag = { x: event.clientX, y: event.clientY, moved: 0 };
    });
    canvas.addEventListener("pointermove", (event) => (this.drag ? this.dragged(event) : this.hover(event)));
    canvas.addEventListener("pointerup", (event) => this.released(event));
    canvas.addEventListener("pointerleave", () => {
      this.point(-1);
      ostinato.plots.hideTip();
    });
    canvas.addEventListener("dblclick", (event) => this.fill(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    small.addEventListener("pointerdown", (event) => {
      small.setPointerCapture(event.pointerId);
      this.jump(event);
    });
    small.addEventListener("pointermove", (event) => {
      if (event.buttons) this.jump(event);
    });
  }

  /** Where an event is: step, byte, and the place of the slot there, -1 where there is none. */
  at(event) {
    const { canvas, box, view, map } = this.panel;
    const bounds = canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left - box.left;
    const y = event.clientY - bounds.top - box.top;
    const step = view.left + (x / box.width) * (view.right - view.left);
    const byte = view.top - (y / box.height) * (view.top - view.bottom);
    const inside = x >= 0 && x < box.width && y >= 0 && y < box.height;
    return { step, byte, slot: inside ? map.at(step, byte) : -1 };
  }

  pan(x, y) {
    const { view, box } = this.panel;
    const across = (x * (view.right - view.left)) / box.width;
    const up = (-y * (view.top - view.bottom)) / box.height;
    this.panel.look({ left: view.left + across, right: view.right + across, bottom: view.bottom + up, top: view.top + up });
  }

  wheel(event) {
    event.preventDefault();
    // with Shift a wheel turns sideways in most browsers
    const turned = event.shiftKey ? event.deltaY || event.deltaX : event.deltaY;
    if (!event.shiftKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.pan(event.deltaX, 0);
      return;
    }
    const by = Math.exp(Math.max(-1, Math.min(1, turned / 300)) * (event.ctrlKey ? 2 : 1));
    this.panel.zoom(by, this.at(event), !event.altKey, !event.shiftKey);
  }

  dragged(event) {
    const { drag } = this;
    drag.moved += Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y);
    if (drag.moved > 4) {
      this.panel.canvas.classList.add("dragged");
      ostinato.plots.hideTip();
      this.pan(drag.x - event.clientX, drag.y - event.clientY);
    }
    [drag.x, drag.y] = [event.clientX, event.clientY];
  }

  released(event) {
    const still = this.drag && this.drag.moved <= 4;
    this.drag = null;
    this.panel.canvas.classList.remove("dragged");
    if (!still) return;
    const { step, slot } = this.at(event);
    if (slot >= 0) this.panel.select(slot, step);
    else this.panel.pin(step);
  }

  /** A double click: the slot fills the map, or all of it is shown again. */
  fill(event) {
    const { map } = this.panel;
    const { slot } = this.at(event);
    if (slot < 0) {
      this.panel.look(map.whole);
      return;
    }
    const [first, last, low, size] = [map.first, map.last, map.offset, map.bytes].map((column) => column[slot]);
    const beside = (last - first) * 0.3;
    this.panel.look({ left: first - beside, right: last + beside, bottom: low - size * 0.6, top: low + size * 1.6 });
  }

  key(event) {
    const { panel } = this;
    const keys = {
      ArrowLeft: () => this.pan(-60, 0),
      ArrowRight: () => this.pan(60, 0),
      ArrowUp: () => this.pan(0, -60),
      ArrowDown: () => this.pan(0, 60),
      "+": () => panel.zoom(0.7),
      "=": () => panel.zoom(0.7),
      "-": () => panel.zoom(1 / 0.7),
      0: () => panel.look(panel.map.whole),
      p: () => panel.toPeak(),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    keys[event.key]();
    event.preventDefault();
  }

  hover(event) {
    const { map } = this.panel;
    const { element, bytes, plots } = ostinato;
    const { step, slot } = this.at(event);
    this.point(slot, step);
    if (slot >= 0) {
      plots.showTip(event, ...ostinato.slotTip(map, slot, step));
      return;
    }
    const whole = Math.floor(step);
    if (whole < 0 || whole >= map.plan.steps.node.length) {
      plots.hideTip();
      return;
    }
    const { live, extent } = map.usage(whole);
    plots.showTip(
      event,
      element("b", {}, `step ${whole}`),
      plots.fact("node", map.node(whole)),
      plots.fact("live", bytes(live)),
      plots.fact("highest byte", bytes(extent)),
      extent > live ? plots.fact("holes", plots.percent(1 - live / extent)) : null,
    );
  }

  /** Marks the slot under the pointer; the other panels hear of its node. */
  point(slot, step) {
    const { panel } = this;
    if (slot === panel.hovered) return;
    panel.hovered = slot;
    panel.bus.hover(slot < 0 ? null : { node: panel.nodeOf(slot, step), from: "arena" });
    panel.draw();
  }

  /** A click in the small map: its middle is there. */
  jump(event) {
    const { small, map, view } = this.panel;
    const box = small.getBoundingClientRect();
    const { right, top } = map.whole;
    this.panel.lookAt(((event.clientX - box.left) / box.width) * right, (1 - (event.clientY - box.top) / box.height) * top, view);
  }
};
