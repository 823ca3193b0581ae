// The address space as a strip: every region of every device with what lies in it, wide as it is large. Pointing names an item, clicking selects it.
"use strict";

ostinato.Space = class Space {
  constructor(data, bus) {
    this.memory = data.memory || [];
    this.bus = bus;
    this.element = ostinato.element("div.space", { "aria-label": "Regions of memory" });
  }

  /** The regions as an entry has them: io holds its inputs and outputs. */
  static regions(memory, entry) {
    const io = entry.plan && entry.plan.io;
    return memory.map((region) => {
      const own = io && region.kind === "io" && region.device === io.device;
      return own ? { ...region, items: io.items } : region;
    });
  }

  open(entry) {
    const { element, bytes } = ostinato;
    const regions = Space.regions(this.memory, entry).filter((region) => region.bytes);
    const most = Math.max(1, ...regions.map((region) => region.bytes));
    this.element.hidden = !regions.length;
    this.bars = regions.map((region) => {
      const canvas = element("canvas");
      const name = regions.some((other) => other.device !== region.device) ? `${region.device} ${region.kind}` : region.kind;
      const bar = element(
        "div.region",
        { style: `flex: ${(region.bytes / most).toFixed(6)} 1 112px`, "data-kind": region.kind },
        element("div.name", {}, element("b", {}, name), ` ${bytes(region.bytes)}`),
        canvas,
      );
      const item = (event) => {
        const box = canvas.getBoundingClientRect(),
          at = ((event.clientX - box.left) / box.width) * region.bytes;
        const inside = region.items.find(([, , offset, size]) => offset <= at && at < offset + size);
        const near = (best, other) => (Math.abs(other[2] + other[3] / 2 - at) < Math.abs(best[2] + best[3] / 2 - at) ? other : best);
        return inside || (region.items.length ? region.items.reduce(near) : null);
      };
      canvas.addEventListener("pointermove", (event) => this.tip(event, region, item(event)));
      canvas.addEventListener("pointerleave", () => ostinato.plots.hideTip());
      canvas.addEventListener("click", (event) => {
        const found = item(event);
        if (found) this.bus.select({ node: ostinato.text(found[0]) });
      });
      new ResizeObserver(() => this.paint(canvas, region)).observe(bar);
      return { bar, canvas, region };
    });
    this.element.replaceChildren(...this.bars.map(({ bar }) => bar));
  }

  /** Says which device's arena the map shows. */
  at(device) {
    for (const { bar, region } of this.bars) bar.classList.toggle("shown", region.kind === "arena" && region.device === device);
  }

  repaint() {
    for (const { canvas, region } of this.bars || []) this.paint(canvas, region);
  }

  tip(event, region, item) {
    const { element, bytes, count, text } = ostinato,
      { fact, address, showTip } = ostinato.plots;
    if (!item) {
      showTip(
        event,
        element("b", {}, `${region.device}/${region.kind}`),
        fact("bytes", count(region.bytes)),
        region.base ? fact("address", region.base) : null,
      );
      return;
    }
    const [name, type, offset, size, what] = item;
    showTip(
      event,
      element("b", {}, text(name)),
      element("div.soft", {}, `${text(what)} · ${text(type)}`),
      fact("bytes", `${bytes(size)}, [${count(offset)}, ${count(offset + size)})`),
      region.base ? fact("address", address(region.base, offset)) : null,
    );
  }

  paint(canvas, region) {
    const width = canvas.parentElement.clientWidth,
      height = 13;
    if (width < 8) return;
    const { context } = ostinato.plots.fitted(canvas, width, height),
      { css } = ostinato;
    context.fillStyle = css(region.kind === "arena" ? "--curve" : "--sunken");
    context.fillRect(0, 0, width, height);
    region.items.forEach(([, , offset, size, what], index) => {
      const left = (offset / region.bytes) * width,
        wide = Math.max(1, (size / region.bytes) * width);
      context.fillStyle = css(`--what-${ostinato.text(what)}`);
      context.globalAlpha = index % 2 ? 0.62 : 1;
      context.fillRect(left, 0, Math.min(wide, width - left), height);
    });
    context.globalAlpha = 1;
  }
};
