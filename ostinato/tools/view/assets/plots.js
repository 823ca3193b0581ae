// What the drawing panels share beside the shell: ticks of axes, colours as pixels, the tip that follows the pointer, and drawing once a frame.
"use strict";

ostinato.plots = (() => {
  const { element, css } = ostinato;

  /** A number with an SI prefix and three digits: "12.3 M". */
  function short(value) {
    const names = ["", " k", " M", " G", " T", " P"];
    let shown = value,
      name = 0;
    while (Math.abs(shown) >= 999.5 && name < names.length - 1) {
      shown /= 1000;
      name += 1;
    }
    return `${Number(shown.toPrecision(3))}${names[name]}`;
  }

  const percent = (part) => `${(100 * part).toFixed(part && Math.abs(part) < 0.0995 ? 1 : 0)} %`;

  /** The address of a byte; bases are hexadecimal text, as a number holds no 64 bits. */
  const address = (base, offset) => `0x${(BigInt(base) + BigInt(offset)).toString(16)}`;

  /** Multiples of `step` in [low, high]. */
  function multiples(low, high, step) {
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= high; at += 1) found.push(at * step);
    return found;
  }

  /** About `wanted` ticks: multiples of 1, 2 or 5 times a power of ten, not below `least`. */
  function ticks(low, high, wanted, least = 0) {
    const rough = Math.max(least, (high - low) / Math.max(1, wanted));
    const power = 10 ** Math.floor(Math.log10(rough));
    return multiples(
      low,
      high,
      [1, 2, 5, 10].map((by) => by * power).find((by) => by >= rough * 0.999),
    );
  }

  /** The same for bytes: multiples of a power of two. */
  function byteTicks(low, high, wanted) {
    return multiples(low, high, 2 ** Math.max(0, Math.ceil(Math.log2((high - low) / Math.max(1, wanted)))));
  }

  /** The colour of what a slot is for, or of a repeated layer: along a wheel, so that neighbours are alike and far ones are not. */
  const colours = {
    role: (name) => css(`--role-${name.replace(" ", "-")}`),
    layer(layer, layers) {
      if (layer < 0) return css("--role-workspace");
      const turn = 205 + 290 * (layers > 1 ? layer / (layers - 1) : 0);
      return `hsl(${Math.round(turn) % 360} 48% ${layer % 2 ? 62 : 53}%)`;
    },
  };

  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  /** A CSS colour as [red, green, blue]. */
  function rgb(colour) {
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  }

  /** Between two colours of `rgb`, `part` of the second. */
  const mix = (a, b, part) => a.map((value, index) => Math.round(value + (b[index] - value) * part));

  /** As a pixel of an image: bytes red, green, blue and alpha in memory. */
  const pixel = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

  /** How bright a colour looks, 0 to 1: what is written on it is black or white by that. */
  const brightness = ([red, green, blue]) => (0.299 * red + 0.587 * green + 0.114 * blue) / 255;

  let tip = null;

  /** The tip: shown beside the pointer with these children, inside the window. */
  function showTip(event, ...children) {
    if (!tip) {
      tip = element("div.tip.plot-tip", { role: "tooltip" });
      document.body.append(tip);
    }
    tip.replaceChildren(...children.filter(Boolean));
    tip.hidden = false;
    const box = tip.getBoundingClientRect(),
      gap = 14;
    const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + gap, innerHeight - box.height - 6))}px`;
  }

  function hideTip() {
    if (tip) tip.hidden = true;
  }

  /** A line of a tip: what, and how much. */
  const fact = (what, ...said) => element("div.fact", {}, element("span.soft", {}, what), element("span", {}, ...said));

  /** Makes `draw` run once in the next frame, however often it is asked for; the milliseconds of the last runs are kept in `times`. */
  function framed(draw) {
    let asked = false;
    const ask = () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        const begin = performance.now();
        draw();
        if (ask.times.push(performance.now() - begin) > 1000) ask.times.shift();
      });
    };
    ask.times = [];
    return ask;
  }

  /** Gives a canvas the pixels of a box; returns its context scaled to CSS pixels, and how many pixels one of these has. */
  function fitted(canvas, width, height) {
    const ratio = Math.min(2, ostinato.ratio());
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      [canvas.width, canvas.height] = [w, h];
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { context, ratio };
  }

  /** Covers a canvas with pixels. On paper they go by way of another canvas: Chromium prints what was drawn since, and forgets pixels that were put everywhere. */
  function cover(context, image) {
    if (!ostinato.printed()) return context.putImageData(image, 0, 0);
    const copy = element("canvas", { width: image.width, height: image.height });
    copy.getContext("2d").putImageData(image, 0, 0);
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(copy, 0, 0);
    context.restore();
  }

  /** A text that fits `room` pixels of a small font: its front cut off, as the ends of names differ, or its end; "" where little of it does. */
  function cut(text, room, front = true, letter = 6.2) {
    const fits = Math.floor(room / letter);
    if (text.length <= fits) return text;
    if (fits < 4) return "";
    return front ? `…${text.slice(text.length - fits + 1)}` : `${text.slice(0, fits - 1)}…`;
  }

  /** Buttons of which one is pressed: choose(["role", "layer"], "role", (name) => ...). */
  function choice(label, names, chosen, onchange) {
    const group = element("span.choice", { role: "radiogroup", "aria-label": label });
    for (const name of names) {
      group.append(
        element(
          "button",
          {
            role: "radio",
            "aria-checked": String(name === chosen),
            onclick(event) {
              for (const other of group.children) other.setAttribute("aria-checked", String(other === event.currentTarget));
              onchange(name);
            },
          },
          name,
        ),
      );
    }
    return group;
  }

  return { short, percent, address, ticks, byteTicks, colours, rgb, mix, pixel, brightness, showTip, hideTip, fact, framed, fitted, cover, cut, choice };
})();
