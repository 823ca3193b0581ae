// The steps of a plan in their order, as wide as they take: measured times where the page has a profile, or the bytes or operations that the operator table
// models, which is said beside it. Below, the steps, operators or layers that take the most.
"use strict";

(() => {
  const { element, bytes, count, seconds, css } = ostinato;
  const plots = ostinato.plots;
  const LEFT = 12,
    RIGHT = 12,
    TOP = 8,
    FOOT = 22,
    LANE = 46,
    GAP = 6;

  const METRICS = {
    time: {
      about: "measured",
      unit: (value) => (value ? seconds(value) : "0"),
      of: (entry) => entry.profile.seconds.map((value) => Math.max(0, value)),
    },
    bytes: { about: "modelled: bytes read and written, no times", unit: bytes, of: (entry) => entry.plan.steps.bytes },
    operations: {
      about: "modelled: floating-point operations, no times",
      unit: (value) => plots.short(value),
      of: (entry) => entry.plan.steps.flops,
    },
  };

  class TimelinePanel {
    constructor(place, data, bus) {
      this.bus = bus;
      this.group = "steps";
      this.canvas = element("canvas", { tabindex: "0", "aria-label": "Steps in their order, as wide as they take" });
      this.stage = element("div.stage.lanes", {}, this.canvas);
      this.metrics = element("span");
      this.note = element("span.soft");
      this.top = element("div.top");
      place.append(
        element(
          "div.timeline",
          {},
          element(
            "div.bar",
            {},
            this.metrics,
            plots.choice("List", ["steps", "operators", "layers"], this.group, (group) => {
              this.group = group;
              this.list();
            }),
            this.note,
            element("span.room"),
            element("button", { onclick: () => this.look(0, this.total) }, "all"),
          ),
          this.stage,
          this.top,
        ),
      );
      this.draw = plots.framed(() => this.paint());
      this.canvas.frames = this.draw.times;
      new ResizeObserver(() => this.draw()).observe(this.stage);
      this.listen();
      bus.on("entry", () => this.open());
      bus.on("select", (chosen) => this.chosen(chosen));
      bus.on("theme", () => this.draw());
      this.open();
    }

    open() {
      this.entry = this.bus.entry();
      const { plan, profile } = this.entry;
      this.stage.hidden = this.top.hidden = !plan;
      this.metrics.replaceChildren();
      this.note.textContent = plan ? "" : "This entry was not planned.";
      if (!plan) return;
      const names = profile ? ["time", "bytes", "operations"] : ["bytes", "operations"];
      this.metrics.append(plots.choice("Width", names, names[0], (name) => this.measure(name)));
      const lanes = new Map();
      this.lane = plan.steps.node.map((_, step) => {
        const key = `${ostinato.text(plan.steps.device[step])} ${plan.steps.lane[step]}`;
        if (!lanes.has(key)) lanes.set(key, lanes.size);
        return lanes.get(key);
      });
      this.lanes = [...lanes.keys()];
      this.stage.style.height = `${TOP + FOOT + this.lanes.length * (LANE + GAP)}px`;
      this.measure(names[0]);
    }

    measure(metric) {
      const { profile } = this.entry;
      this.metric = METRICS[metric];
      this.width = this.metric.of(this.entry);
      this.starts = [0];
      for (const width of this.width) this.starts.push(this.starts[this.starts.length - 1] + width);
      this.total = this.starts[this.starts.length - 1];
      this.note.textContent = metric === "time" ? this.measured(profile) : this.metric.about;
      this.note.title = metric === "time" ? [profile.method, ...profile.notes].join("\n") : "";
      this.list();
      this.look(0, this.total);
    }

    measured({ device, mode, runs, whole, sum }) {
      return `measured on ${device}, ${mode}, ${count(runs)} runs: ${seconds(whole)} undisturbed, ${seconds(sum)} step by step`;
    }

    look(left, right) {
      const least = this.total / Math.max(1, this.width.length) / 20,
        size = Math.min(this.total, Math.max(least, right - left));
      const start = Math.min(this.total - size, Math.max(0, (left + right - size) / 2));
      this.view = { left: start, right: start + size };
      this.draw();
    }

    list() {
      this.grid = ostinato.timelineGrid(this.entry, this.group, this.width, this.metric, this.bus);
      this.top.replaceChildren(this.grid.element);
    }

    chosen(chosen) {
      if (!this.entry.plan) return;
      const row = chosen && this.group === "steps" && this.grid.shown.find((found) => found.node === chosen.node);
      if (row) {
        const [from, to] = [this.starts[row.step], this.starts[row.step + 1]],
          size = this.view.right - this.view.left;
        if (to < this.view.left || from > this.view.right) this.look(from - size / 2, from + size / 2);
        this.grid.reveal(row);
      }
      this.grid.draw();
      this.draw();
    }

    // --- the pointer

    listen() {
      let drag = null;
      const at = (event) =>
        this.view.left + ((event.clientX - this.canvas.getBoundingClientRect().left - LEFT) / this.box) * (this.view.right - this.view.left);
      this.canvas.addEventListener(
        "wheel",
        (event) => {
          event.preventDefault();
          const { left, right } = this.view,
            point = at(event),
            by = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300)));
          if (Math.abs(event.deltaX) > Math.abs(event.deltaY))
            this.look(left + (event.deltaX / this.box) * (right - left), right + (event.deltaX / this.box) * (right - left));
          else this.look(point + (left - point) * by, point + (right - point) * by);
        },
        { passive: false },
      );
      this.canvas.addEventListener("pointerdown", (event) => {
        this.canvas.setPointerCapture(event.pointerId);
        drag = { x: event.clientX, moved: 0 };
      });
      this.canvas.addEventListener("pointermove", (event) => {
        if (!drag) {
          this.hover(event, at(event));
          return;
        }
        const move = ((drag.x - event.clientX) / this.box) * (this.view.right - this.view.left);
        drag.moved += Math.abs(event.clientX - drag.x);
        drag.x = event.clientX;
        if (drag.moved > 4) {
          plots.hideTip();
          this.look(this.view.left + move, this.view.right + move);
        }
      });
      this.canvas.addEventListener("pointerup", (event) => {
        const step = drag && drag.moved <= 4 ? this.stepAt(at(event)) : -1;
        drag = null;
        if (step >= 0) this.bus.select({ node: ostinato.text(this.entry.plan.steps.node[step]) });
      });
      this.canvas.addEventListener("pointerleave", () => plots.hideTip());
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      this.canvas.addEventListener("dblclick", () => this.look(0, this.total));
    }

    /** The step before or after the selected node's; zoom about the middle. */
    key(event) {
      const { node } = this.entry.plan.steps,
        { left, right } = this.view,
        chosen = this.bus.selection && this.bus.selection.node;
      const beside = (by) => {
        const at = node.findIndex((id) => ostinato.text(id) === chosen),
          step = at < 0 ? 0 : at + by;
        if (step >= 0 && step < node.length) this.bus.select({ node: ostinato.text(node[step]) });
      };
      const zoom = (by) => this.look((left + right - (right - left) * by) / 2, (left + right + (right - left) * by) / 2);
      const keys = {
        ArrowLeft: () => beside(-1),
        ArrowRight: () => beside(1),
        "+": () => zoom(0.7),
        "=": () => zoom(0.7),
        "-": () => zoom(1 / 0.7),
        0: () => this.look(0, this.total),
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      keys[event.key]();
      event.preventDefault();
    }

    stepAt(point) {
      if (point < 0 || point >= this.total) return -1;
      let low = 0,
        high = this.width.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.starts[middle + 1] <= point) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    hover(event, point) {
      const step = this.stepAt(point);
      if (step < 0) {
        plots.hideTip();
        return;
      }
      const { plan, profile } = this.entry,
        { steps } = plan,
        { text } = ostinato,
        time = profile ? profile.seconds[step] : -1;
      plots.showTip(
        event,
        element("b", {}, text(steps.node[step])),
        element("div.soft", {}, `step ${step} · ${text(steps.op[step])} · ${text(steps.kernel[step])}`),
        time >= 0 ? plots.fact("time", `${seconds(time)} (best ${seconds(profile.best[step])})`) : null,
        plots.fact("bytes", bytes(steps.bytes[step])),
        plots.fact("operations", plots.short(steps.flops[step])),
        time > 0 ? plots.fact("achieved", `${plots.short(steps.bytes[step] / time)}B/s, ${plots.short(steps.flops[step] / time)}FLOP/s`) : null,
        time > 0 && profile.share ? plots.fact("of ceiling", `${plots.percent(profile.share[step])}, bound by ${profile.bound[step]}`) : null,
        plots.fact("share", plots.percent(this.width[step] / (this.total || 1))),
      );
    }

    // --- the picture

    paint() {
      const width = this.stage.clientWidth,
        height = this.stage.clientHeight;
      if (!this.entry.plan || width < 60 || height < 40) return;
      const { context } = plots.fitted(this.canvas, width, height),
        { left, right } = this.view,
        { steps } = this.entry.plan;
      this.box = width - LEFT - RIGHT;
      const scale = this.box / (right - left || 1),
        x = (value) => LEFT + (value - left) * scale;
      context.clearRect(0, 0, width, height);
      context.font = `11px ${css("--sans")}`;
      context.strokeStyle = css("--line");
      this.lanes.forEach((_, lane) => {
        context.fillStyle = css("--sunken");
        context.fillRect(LEFT, TOP + lane * (LANE + GAP), this.box, LANE);
      });
      const chosen = this.bus.selection && this.bus.selection.node,
        filled = new Map();
      let drawn = 0;
      for (let step = Math.max(0, this.stepAt(left)); step < this.width.length && this.starts[step] < right; step += 1) {
        if (!this.width[step]) continue;
        const from = Math.max(LEFT, x(this.starts[step])),
          to = Math.min(LEFT + this.box, x(this.starts[step + 1])),
          top = TOP + this.lane[step] * (LANE + GAP);
        const op = ostinato.text(steps.op[step]) || ostinato.text(steps.kernel[step]),
          marked = ostinato.text(steps.node[step]) === chosen;
        if (to - from < 1 && !marked) {
          // several in a pixel: the largest of them
          const key = `${this.lane[step]} ${Math.floor(from)}`,
            best = filled.get(key);
          if (!best || best.much < this.width[step]) filled.set(key, { much: this.width[step], op, left: Math.floor(from), top });
          continue;
        }
        context.fillStyle = ostinato.colour(op);
        context.fillRect(from, top, Math.max(1, to - from - (to - from > 4 ? 1 : 0)), LANE);
        drawn += 1;
        if (marked) {
          context.strokeStyle = css("--ink");
          context.lineWidth = 2;
          context.strokeRect(from, top + 1, Math.max(2, to - from), LANE - 2);
          context.lineWidth = 1;
        }
        if (to - from > 40) this.name(context, from, to, top, op, step);
      }
      for (const { op, left: place, top } of filled.values()) {
        context.fillStyle = ostinato.colour(op);
        context.fillRect(place, top, 1, LANE);
        drawn += 1;
      }
      this.axis(context, x, height - FOOT);
      this.canvas.dataset.drawn = drawn;
    }

    name(context, from, to, top, op, step) {
      context.fillStyle = plots.brightness(plots.rgb(ostinato.colour(op))) > 0.55 ? "rgba(10, 16, 22, 0.92)" : "rgba(255, 255, 255, 0.95)";
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.fillText(plots.cut(op, to - from - 8, false), from + 4, top + LANE / 2 - 8);
      context.globalAlpha = 0.8;
      context.fillText(plots.cut(this.metric.unit(this.width[step]), to - from - 8), from + 4, top + LANE / 2 + 8);
      context.globalAlpha = 1;
    }

    axis(context, x, top) {
      const { left, right } = this.view;
      context.fillStyle = css("--soft");
      context.strokeStyle = css("--line");
      context.textAlign = "center";
      context.textBaseline = "top";
      const places = this.metric === METRICS.bytes ? plots.byteTicks(left, right, this.box / 110) : plots.ticks(left, right, this.box / 110, 0);
      for (const at of places) {
        context.beginPath();
        context.moveTo(Math.round(x(at)) + 0.5, top - 4);
        context.lineTo(Math.round(x(at)) + 0.5, top);
        context.stroke();
        context.fillText(this.metric.unit(at), Math.max(LEFT + 14, Math.min(LEFT + this.box - 20, x(at))), top + 3);
      }
    }
  }

  ostinato.panel("timeline", {
    title: "Timeline",
    available: (data) => data.entries.some((entry) => entry.plan),
    render: (place, data, bus) => {
      place.view = new TimelinePanel(place, data, bus);
    },
  });
})();
