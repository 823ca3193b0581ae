// Draws what the scene of a graph has: frames, edges and boxes, with less in them the smaller they are.
"use strict";

ostinato.GraphPen = class GraphPen {
  constructor(context, view) {
    this.context = context;
    this.view = view;
  }

  frame(found) {
    const { context } = this;
    const { css } = ostinato;
    context.fillStyle = css("--raised");
    context.strokeStyle = css("--line");
    context.lineWidth = 1.2;
    if (!found.all) {
      // the stretches behind the one that is shown
      for (const shift of [10, 5]) {
        context.beginPath();
        context.roundRect(found.left + shift, found.top + shift, found.right - found.left, found.bottom - found.top, 10);
        context.fill();
        context.stroke();
      }
    }
    context.beginPath();
    context.roundRect(found.left, found.top, found.right - found.left, found.bottom - found.top, 10);
    context.fill();
    context.stroke();
  }

  // `colour` is that of an edge of the node that is looked at; others are faint, and fainter while a search shows its matches.
  edge(edge, searching, colour = null) {
    const { context, view } = this;
    const strong = colour !== null;
    const { css } = ostinato;
    context.strokeStyle = css(colour || "--faint");
    context.globalAlpha = strong ? 1 : searching ? 0.15 : edge.kind === "arc" ? 0.22 : edge.kind === "carried" ? 0.5 : 0.75;
    context.lineWidth = (strong ? 2 : 1.1) / Math.max(0.4, Math.min(1, view.scale));
    if (edge.kind === "carried") context.setLineDash([5, 4]);
    context.beginPath();
    let tipX, tipY, fromRight = 0;
    if (edge.kind === "flow") {
      const line = edge.line;
      context.moveTo(...line[0]);
      for (let at = 1; at < line.length; at++) {
        const [x0, y0] = line[at - 1], [x1, y1] = line[at];
        const bend = Math.min(40, (y1 - y0) / 2);
        context.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
      }
      [tipX, tipY] = line[line.length - 1];
    } else {
      const arc = edge.arc;
      context.moveTo(arc[0], arc[1]);
      context.bezierCurveTo(...arc.slice(2));
      [tipX, tipY] = [arc[6], arc[7]];
      fromRight = edge.kind === "arc" ? 1 : -1;
    }
    context.stroke();
    context.setLineDash([]);
    if (view.scale > 0.3) {
      context.fillStyle = context.strokeStyle;
      context.beginPath();
      if (fromRight) context.moveTo(tipX, tipY), context.lineTo(tipX + 7 * fromRight, tipY - 3.5), context.lineTo(tipX + 7 * fromRight, tipY + 3.5);
      else context.moveTo(tipX, tipY), context.lineTo(tipX - 3.5, tipY - 7), context.lineTo(tipX + 3.5, tipY - 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  item(item, { chosen, near, hovered, match, searching }) {
    const { context, view } = this;
    const { css } = ostinato;
    const x = item.x - item.w / 2, y = item.y - item.h / 2;
    const round = item.kind === "node" ? 6 : item.h / 2;
    const tint = item.kind === "node" ? ostinato.colour(item.op) : css("--op-value");
    context.globalAlpha = searching && !match && !chosen ? 0.3 : 1;
    context.beginPath();
    context.roundRect(x, y, item.w, item.h, round);
    context.fillStyle = css("--paper");
    context.fill();
    context.save();
    context.clip();
    context.globalAlpha *= view.scale < 0.3 ? 0.55 : item.slim ? 0.1 : 0.16;
    context.fillStyle = tint;
    context.fillRect(x, y, item.w, item.h);
    context.restore();
    if (item.kind === "node") {
      context.save();
      context.clip();
      context.fillStyle = tint;
      context.fillRect(x, y, 5, item.h);
      context.restore();
    }
    context.strokeStyle = chosen || near ? css("--accent") : match ? css("--mark") : css("--line");
    context.lineWidth = chosen ? 3 : match ? 2.5 : near || hovered ? 1.8 : 1;
    context.stroke();
    if (view.scale >= 0.3) this.text(item, x, y);
    context.globalAlpha = 1;
  }

  text(item, x, y) {
    const { context, view } = this;
    const { css } = ostinato;
    context.textBaseline = "middle";
    context.fillStyle = css("--ink");
    context.font = `600 12px ${css("--sans")}`;
    const indent = item.kind === "node" ? 13 : 15;
    context.fillText(item.title, x + indent, y + (item.slim ? item.h / 2 : 14));
    if (view.scale < 0.45) return;
    context.fillStyle = css("--soft");
    context.font = `11px ${css("--sans")}`;
    if (item.slim) {
      context.textAlign = "right";
      context.fillText(item.line, x + item.w - 10, y + item.h / 2);
      context.textAlign = "left";
      return;
    }
    if (item.time) {
      context.textAlign = "right";
      context.fillText(item.time, x + item.w - 10, y + 14);
      context.textAlign = "left";
    }
    context.fillText(item.line, x + indent, y + 29);
    if (item.type) {
      context.textAlign = "right";
      context.fillText(item.type, x + item.w - 10, y + 29);
      context.textAlign = "left";
    }
  }
};
