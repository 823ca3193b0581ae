// A table of any number of rows: only those in sight are elements. Sorted by a click on a column's name, searched, and copied as CSV. The up and down keys pick
// the row before and after the one that was picked last.
"use strict";

ostinato.Grid = class Grid {
  // `columns`: {title, get(row) -> number or text, show(row) -> text or element, width, right}.
  // `pick(row)` is told of a click, `picked(row)` says what is marked.
  constructor(columns, { name, pick, picked, note, sort = -1, down = false, extra = [] }) {
    const { element } = ostinato;
    Object.assign(this, { columns, name, pick, picked, sort, down, rows: [], shown: [], words: "" });
    this.search = element("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": `Search ${name}`,
      oninput: () => {
        this.words = this.search.value.toLowerCase();
        this.sift();
      },
    });
    this.status = element("span.soft");
    this.copied = element("button", { title: "What is listed, as comma separated values", onclick: () => this.copy() }, "Copy as CSV");
    this.head = element("div.grid-row.grid-head", { role: "row" });
    this.body = element("div.grid-body", { role: "rowgroup" });
    this.scroll = element("div.grid-scroll", { role: "table", "aria-label": name, tabindex: "0", onscroll: () => this.draw() }, this.head, this.body);
    this.element = element(
      "div.grid",
      { style: `--count: ${columns.length}; --columns: ${columns.map((column) => column.width || "1fr").join(" ")}` },
      element("div.bar", {}, ...extra, element("span.search", {}, this.search), this.status, element("span.room"), note || "", this.copied),
      this.scroll,
    );
    this.scroll.addEventListener("keydown", (event) => this.key(event));
    this.draw = ostinato.plots.framed(() => this.paint());
    new ResizeObserver(() => this.draw()).observe(this.scroll);
    this.element.grid = this;
  }

  static HEIGHT = 23;
  static PRINTED = 300; // rows on paper

  set(rows) {
    this.rows = rows;
    this.texts = null;
    this.sift();
  }

  text(row, column) {
    return column.text ? column.text(row) : String(column.get(row) ?? "");
  }

  sift() {
    if (!this.texts && this.words)
      this.texts = new Map(
        this.rows.map((row) => [
          row,
          this.columns
            .map((column) => this.text(row, column))
            .join(" ")
            .toLowerCase(),
        ]),
      );
    const words = this.words.split(/\s+/).filter(Boolean);
    this.shown = words.length ? this.rows.filter((row) => words.every((word) => this.texts.get(row).includes(word))) : [...this.rows];
    const column = this.columns[this.sort];
    if (column) {
      const sign = this.down ? -1 : 1;
      const values = new Map(this.shown.map((row) => [row, column.get(row)]));
      this.shown.sort((a, b) => {
        const [x, y] = [values.get(a), values.get(b)];
        return (
          sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x ?? "").localeCompare(String(y ?? ""), "en", { numeric: true }))
        );
      });
    }
    const { count } = ostinato;
    this.status.textContent =
      this.shown.length === this.rows.length ? `${count(this.rows.length)} rows` : `${count(this.shown.length)} of ${count(this.rows.length)} rows`;
    this.headings();
    this.scroll.scrollTop = 0;
    this.draw();
  }

  headings() {
    this.head.replaceChildren(
      ...this.columns.map((column, index) =>
        ostinato.element(
          `button.cell${column.right ? ".number" : ""}`,
          {
            role: "columnheader",
            "aria-sort": this.sort === index ? (this.down ? "descending" : "ascending") : "none",
            title: column.about || `Sort by ${column.title}`,
            onclick: () => {
              this.down = this.sort === index ? !this.down : Boolean(column.right);
              this.sort = index;
              this.sift();
            },
          },
          column.title,
          this.sort === index ? (this.down ? " ↓" : " ↑") : "",
        ),
      ),
    );
  }

  paint() {
    const { element } = ostinato,
      height = Grid.HEIGHT,
      printed = ostinato.printed();
    const from = printed ? 0 : Math.max(0, Math.floor(this.scroll.scrollTop / height) - 4);
    const to = Math.min(this.shown.length, printed ? Grid.PRINTED : from + Math.ceil(this.scroll.clientHeight / height) + 8);
    this.body.style.height = `${this.shown.length * height}px`;
    const made = [];
    for (let index = from; index < to; index += 1) {
      const row = this.shown[index];
      made.push(
        element(
          "div.grid-row",
          {
            role: "row",
            "aria-selected": String(Boolean(this.picked && this.picked(row))),
            style: `top: ${index * height}px`,
            onclick: () => this.choose(row),
          },
          ...this.columns.map((column) => {
            const shown = column.show ? column.show(row) : this.text(row, column);
            return element(`div.cell${column.right ? ".number" : ""}`, { role: "cell", title: typeof shown === "string" ? shown : null }, shown);
          }),
        ),
      );
    }
    if (to < this.shown.length && printed) made.push(element("div.empty", {}, `and ${ostinato.count(this.shown.length - to)} more rows`));
    this.body.replaceChildren(...made);
  }

  choose(row) {
    if (!this.pick) return;
    this.last = row;
    this.pick(row);
  }

  key(event) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by || !this.pick || event.target !== this.scroll) return;
    event.preventDefault();
    const marked = this.picked && this.last && this.picked(this.last) ? this.last : this.shown.find((row) => this.picked && this.picked(row));
    const row = this.shown[Math.max(0, marked ? this.shown.indexOf(marked) + by : 0)];
    if (!row) return;
    this.choose(row);
    this.reveal(row);
  }

  /** Scrolls to a row, if it is listed. */
  reveal(row) {
    const index = this.shown.indexOf(row);
    if (index < 0) return;
    const top = index * Grid.HEIGHT,
      room = this.scroll.clientHeight - Grid.HEIGHT;
    if (top < this.scroll.scrollTop || top > this.scroll.scrollTop + room - Grid.HEIGHT) this.scroll.scrollTop = Math.max(0, top - room / 2);
    this.draw();
  }

  csv() {
    const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const lines = [this.columns.map((column) => column.title), ...this.shown.map((row) => this.columns.map((column) => this.text(row, column)))];
    return `${lines.map((line) => line.map(quoted).join(",")).join("\r\n")}\r\n`;
  }

  async copy() {
    const text = this.csv();
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // a browser that gives pages from files no clipboard: the old way
      const area = ostinato.element("textarea", { style: "position: fixed; opacity: 0" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    this.copied.textContent = `${ostinato.count(this.shown.length)} rows copied`;
    setTimeout(() => {
      this.copied.textContent = "Copy as CSV";
    }, 1600);
  }
};
