// The map of the space: dots on a canvas, coloured by label; seen closely enough, the pictures themselves.

const CLOSE = 90;  // so few in sight are shown as pictures
const EDGE = 28;  // pixels that stay free, and at the right those of the buttons
const BUTTONS = 48;
const STILL = 8;  // pixels that a finger may move while it taps

export class SpaceMap {
  constructor({ canvas, tip, hues, thumbnail, open }) {
    Object.assign(this, { canvas, tip, hues, thumbnail, open });
    this.points = [];
    this.view = { scale: 1, x: 0, y: 0 };
    [this.fingers, this.images] = [new Map(), new Map()];
    this.marked = this.label = this.pointed = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("pointercancel", (event) => this.fingers.delete(event.pointerId));
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
    const real = scale / this.view.scale;
    this.view.scale = scale;
    this.#shift((real - 1) * (this.view.x - x), (real - 1) * (this.view.y - y));
    this.#point(null);
  }

  #shift(x, y) {
    const within = (shift, length) => Math.min(0, Math.max(length * (1 - this.view.scale), shift));
    this.view.x = within(this.view.x + x, this.canvas.clientWidth);
    this.view.y = within(this.view.y + y, this.canvas.clientHeight);
  }

  place(point) {
    const { scale, x, y } = this.view;
    const within = (share, length) => (EDGE + share * (length - 2 * EDGE)) * scale;
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
    const seen = this.points.map((point) => [point, ...this.place(point)])
      .filter(([, x, y]) => x > -30 && y > -30 && x < width + 30 && y < height + 30);
    const closely = seen.length <= CLOSE;
    const side = Math.min(110, 44 * Math.sqrt(CLOSE / seen.length));
    const radius = Math.min(7, 3.4 + this.view.scale * 0.35);
    this.reach = closely ? side / 2 : 16;
    for (const [point, x, y] of seen) {
      context.globalAlpha = this.label && point.label !== this.label ? 0.15 : 0.85;
      const colour = point.label ? `hsl(${this.hues.get(point.label) ?? 0} 62% 52%)` : ink;
      const image = closely && this.#image(point.id);
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
        context.arc(x, y, closely ? side * 0.72 : radius + 4, 0, 2 * Math.PI);
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

  #least(cost, below = Infinity) {
    let best = null;
    for (const point of this.points) {
      const its = cost(point);
      if (its < below) [best, below] = [point, its];
    }
    return best;
  }

  #nearest(x, y, within) {
    return this.#least((point) => Math.hypot(this.place(point)[0] - x, this.place(point)[1] - y), within);
  }

  #towards(from, [dx, dy]) {
    return this.#least((point) => {
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
    const [image, words] = this.tip.children;
    image.src = this.thumbnail(point.id, 160);
    words.textContent = point.label || `item ${point.id}`;
    const [x, y] = this.place(point);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.tip.style.left = `${Math.min(Math.max(x - 84, 4), width - 172)}px`;
    this.tip.style.top = y > height / 2 ? "auto" : `${y + 16}px`;
    this.tip.style.bottom = y > height / 2 ? `${height - y + 16}px` : "auto";
  }

  #press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.moved = this.fingers.size === 1 ? 0 : Infinity;  // two fingers are no tap
  }

  #move(event) {
    const here = [event.offsetX, event.offsetY];
    const before = this.fingers.get(event.pointerId);
    if (!before) return this.#point(this.#nearest(...here, this.reach));
    this.fingers.set(event.pointerId, here);
    this.moved += Math.hypot(here[0] - before[0], here[1] - before[1]);
    const other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const apart = (finger) => Math.hypot(finger[0] - other[0], finger[1] - other[1]) || 1;
      this.zoom(apart(here) / apart(before), ...other);
    } else if (this.moved > STILL) {
      this.#shift(here[0] - before[0], here[1] - before[1]);
      this.#point(null);
    }
  }

  #release(event) {
    const clicked = this.fingers.size === 1 && this.moved <= STILL;
    this.fingers.delete(event.pointerId);
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
