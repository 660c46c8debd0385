// The map: dots on a canvas, coloured by label. Zoomed in, it shows the images themselves.

const MAX_IMAGES = 90;  // if at most that many items are visible, show their images
const MARGIN = 28;  // pixels around the points, plus space for the buttons on the right
const BUTTONS = 48;
const TAP_DISTANCE = 8;  // maximum movement of a tap in pixels

export class SpaceMap {
  constructor({ canvas, tip, hues, thumbnail, open }) {
    Object.assign(this, { canvas, tip, hues, thumbnail, open });
    this.points = [];
    this.view = { scale: 1, x: 0, y: 0 };
    [this.touches, this.images] = [new Map(), new Map()];
    this.marked = this.label = this.pointed = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("pointercancel", (event) => this.touches.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  mark(id, label) {
    [this.marked, this.label] = [id, label];
    this.#point(null);
  }

  show(points) {
    if (JSON.stringify(points) === JSON.stringify(this.points)) return;
    this.points = points;
    this.#point(null);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [width * ratio, height * ratio];
    this.paint();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = factor ? Math.min(60, Math.max(1, this.view.scale * factor)) : 1;
    const ratio = scale / this.view.scale;
    this.view.scale = scale;
    this.#shift((ratio - 1) * (this.view.x - x), (ratio - 1) * (this.view.y - y));
    this.#point(null);
  }

  #shift(x, y) {
    const within = (shift, length) => Math.min(0, Math.max(length * (1 - this.view.scale), shift));
    this.view.x = within(this.view.x + x, this.canvas.clientWidth);
    this.view.y = within(this.view.y + y, this.canvas.clientHeight);
  }

  place(point) {
    const { scale, x, y } = this.view;
    const within = (share, length) => (MARGIN + share * (length - 2 * MARGIN)) * scale;
    return [within(point.x, this.canvas.clientWidth - BUTTONS) + x, within(point.y, this.canvas.clientHeight) + y];
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    const context = this.canvas.getContext("2d");
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const ink = getComputedStyle(this.canvas).color;
    const ratio = this.canvas.width / width || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const visible = this.points.map((point) => [point, ...this.place(point)])
      .filter(([, x, y]) => x > -30 && y > -30 && x < width + 30 && y < height + 30);
    const asImages = visible.length <= MAX_IMAGES;
    const side = Math.min(110, 44 * Math.sqrt(MAX_IMAGES / visible.length));
    const radius = Math.min(7, 3.4 + this.view.scale * 0.35);
    this.reach = asImages ? side / 2 : 16;
    for (const [point, x, y] of visible) {
      context.globalAlpha = this.label && point.label !== this.label ? 0.15 : 0.85;
      const colour = point.label ? `hsl(${this.hues.get(point.label) ?? 0} 62% 52%)` : ink;
      const image = asImages && this.#image(point.id);
      if (image?.complete && image.naturalWidth) {
        const shrink = side / Math.max(image.naturalWidth, image.naturalHeight);
        const [w, h] = [image.naturalWidth * shrink, image.naturalHeight * shrink];
        if (context.globalAlpha > 0.5) context.globalAlpha = 1;
        context.drawImage(image, x - w / 2, y - h / 2, w, h);
        context.strokeStyle = colour;
        context.lineWidth = 2;
        context.strokeRect(x - w / 2, y - h / 2, w, h);
      } else {
        context.fillStyle = colour;
        context.beginPath();
        context.arc(x, y, radius, 0, 2 * Math.PI);
        context.fill();
      }
      if (point.id === this.marked || point === this.pointed) {
        context.globalAlpha = 1;
        context.strokeStyle = ink;
        context.lineWidth = 2.5;
        context.beginPath();
        context.arc(x, y, asImages ? side * 0.72 : radius + 4, 0, 2 * Math.PI);
        context.stroke();
      }
    }
  }

  #image(id) {
    if (!this.images.has(id)) {
      this.images.set(id, Object.assign(new Image(), { onload: () => this.paint(), src: this.thumbnail(id, 160) }));
    }
    return this.images.get(id);
  }

  #argmin(cost, below = Infinity) {
    let best = null;
    for (const point of this.points) {
      const value = cost(point);
      if (value < below) [best, below] = [point, value];
    }
    return best;
  }

  #nearest(x, y, within) {
    return this.#argmin((point) => Math.hypot(this.place(point)[0] - x, this.place(point)[1] - y), within);
  }

  #towards(from, [dx, dy]) {
    return this.#argmin((point) => {
      const [x, y] = [point.x - from.x, point.y - from.y];
      const ahead = x * dx + y * dy;
      return ahead > 1e-6 ? ahead + 3 * Math.abs(x * dy - y * dx) : Infinity;
    }) ?? from;
  }

  #point(point) {
    this.paint();
    if (point === this.pointed) return;
    this.pointed = point;
    this.tip.hidden = !point;
    this.canvas.style.cursor = point ? "pointer" : "grab";
    if (!point) return;
    const [image, caption] = this.tip.children;
    image.src = this.thumbnail(point.id, 160);
    caption.textContent = point.label || `item ${point.id}`;
    const [x, y] = this.place(point);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.tip.style.left = `${Math.min(Math.max(x - 84, 4), width - 172)}px`;
    this.tip.style.top = y > height / 2 ? "auto" : `${y + 16}px`;
    this.tip.style.bottom = y > height / 2 ? `${height - y + 16}px` : "auto";
  }

  #press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.touches.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.moved = this.touches.size === 1 ? 0 : Infinity;  // two fingers are not a tap
  }

  #move(event) {
    const here = [event.offsetX, event.offsetY];
    const before = this.touches.get(event.pointerId);
    if (!before) return this.#point(this.#nearest(...here, this.reach));
    this.touches.set(event.pointerId, here);
    this.moved += Math.hypot(here[0] - before[0], here[1] - before[1]);
    const other = [...this.touches].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const distance = (touch) => Math.hypot(touch[0] - other[0], touch[1] - other[1]) || 1;
      this.zoom(distance(here) / distance(before), ...other);
    } else if (this.moved > TAP_DISTANCE) {
      this.#shift(here[0] - before[0], here[1] - before[1]);
      this.#point(null);
    }
  }

  #release(event) {
    const clicked = this.touches.size === 1 && this.moved <= TAP_DISTANCE;
    this.touches.delete(event.pointerId);
    const point = clicked && this.#nearest(event.offsetX, event.offsetY, this.reach * 1.5);
    if (point) this.open(point.id);
  }

  #key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      event.preventDefault();
      const { clientWidth: width, clientHeight: height } = this.canvas;
      const from = this.pointed ?? this.#nearest(width / 2, height / 2, Infinity);
      if (from) this.#point(this.pointed ? this.#towards(from, step) : from);
    } else if (event.key === "Enter" && this.pointed) this.open(this.pointed.id);
    else if (event.key === "+") this.zoom(1.6);
    else if (event.key === "-") this.zoom(1 / 1.6);
  }
}
