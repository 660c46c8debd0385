// The map of the space. Hover over or tap an item to see it with its nearest neighbour; scroll or pinch to zoom; drag to move.
"use strict";
(() => {
  const PAD = 24, REACH = 14, IMAGES_FROM = 3.5; // pixels, pixels, zoom
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const sheet = document.getElementById("map-sheet"); // null if items have no images
  const holder = document.getElementById("map");
  const [canvas, ...previews] = holder.querySelectorAll("canvas");
  const card = holder.querySelector(".card"), captions = card.querySelectorAll("figcaption");
  const filter = document.getElementById("map-filter"), count = document.getElementById("map-count");
  const view = { scale: 1, x: 0, y: 0 }; // zoom, and position of the map's corner in page pixels
  const fingers = new Map();
  let wanted = data.names.map(() => true), pointed = -1, waiting = false;

  const size = () => canvas.clientWidth;
  const across = (i) => view.x + view.scale * (PAD + data.x[i] * (size() - 2 * PAD));
  const down = (i) => view.y + view.scale * (PAD + data.y[i] * (size() - 2 * PAD));

  function drawImage(pen, cell, x, y, side) {
    const { columns, side: source } = data;
    const left = (cell % columns) * source, top = Math.floor(cell / columns) * source;
    pen.drawImage(sheet, left, top, source, source, x, y, side, side);
  }

  function draw() {
    waiting = false;
    const sharp = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.width = canvas.height = Math.round(size() * sharp);
    pen.scale(sharp, sharp);
    const chosen = pointed < 0 ? -1 : data.label[pointed];
    const bright = (i) => wanted[data.label[i]] && (chosen < 0 || data.label[i] === chosen);
    const order = data.x.map((_, i) => i).sort((a, b) => bright(a) - bright(b) || (a === pointed) - (b === pointed));
    const side = Math.min(data.side, 7 * view.scale), images = sheet && view.scale >= IMAGES_FROM;
    for (const i of order) {
      const x = across(i), y = down(i);
      if (x < -side || y < -side || x > size() + side || y > size() + side) continue;
      pen.globalAlpha = bright(i) ? 1 : images ? 0.4 : 0.13;
      pen.fillStyle = pen.strokeStyle = data.colour[i];
      if (images) {
        drawImage(pen, data.cell[i], x - side / 2, y - side / 2, side);
        pen.lineWidth = i === pointed ? 4 : 2;
        pen.strokeRect(x - side / 2, y - side / 2, side, side);
      } else {
        pen.beginPath();
        pen.arc(x, y, i === pointed ? 7 : 3.5, 0, 7);
        pen.fill();
      }
    }
    canvas.style.touchAction = view.scale > 1 ? "none" : "pan-y"; // without zoom, a swipe scrolls the page
  }

  function redraw() {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  function preview(number, cell, words) {
    captions[number].textContent = words;
    previews[number].hidden = !sheet || cell < 0;
    if (previews[number].hidden) return;
    previews[number].width = previews[number].height = 2 * data.side;
    drawImage(previews[number].getContext("2d"), cell, 0, 0, 2 * data.side);
  }

  function point(x, y) {
    let best = -1, least = REACH ** 2;
    data.x.forEach((_, i) => {
      const far = (across(i) - x) ** 2 + (down(i) - y) ** 2;
      if (far < least && wanted[data.label[i]]) [best, least] = [i, far];
    });
    if (best !== pointed) redraw();
    pointed = best;
    card.hidden = best < 0;
    if (best < 0) return;
    const near = data.nearest[best];
    preview(0, data.cell[best], data.names[data.label[best]]);
    const sign = near === data.label[best] ? "✓" : "✗";
    preview(1, data.nearestCell[best], near < 0 ? "" : `nearest: ${data.names[near]} ${sign}`);
    const left = x + 18 + card.offsetWidth < size() ? x + 18 : x - 18 - card.offsetWidth;
    card.style.left = `${Math.max(0, left)}px`;
    card.style.top = `${Math.max(0, Math.min(y + 12, size() - card.offsetHeight))}px`;
  }

  function zoom(factor, x, y) {
    const scale = Math.min(40, Math.max(1, view.scale * factor)), ratio = scale / view.scale;
    Object.assign(view, { scale, x: x - (x - view.x) * ratio, y: y - (y - view.y) * ratio });
    move(0, 0);
  }

  function move(dx, dy) { // keeps the frame filled
    const least = size() * (1 - view.scale);
    view.x = Math.min(0, Math.max(least, view.x + dx));
    view.y = Math.min(0, Math.max(least, view.y + dy));
    redraw();
  }

  const spread = ([a, b]) => Math.hypot(a.offsetX - b.offsetX, a.offsetY - b.offsetY);
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
    point(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return point(event.offsetX, event.offsetY);
    const apart = fingers.size === 2 && spread([...fingers.values()]);
    fingers.set(event.pointerId, event);
    if (apart) {
      const [a, b] = fingers.values();
      zoom(spread([a, b]) / apart, (a.offsetX + b.offsetX) / 2, (a.offsetY + b.offsetY) / 2);
    } else move(event.offsetX - before.offsetX, event.offsetY - before.offsetY);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && point(-1e9, 0));
  canvas.addEventListener("wheel", (event) => {
    if (event.deltaY > 0 && view.scale === 1) return; // fully zoomed out: let the page scroll
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }, { passive: false });
  document.getElementById("map-whole").addEventListener("click", () => zoom(0, 0, 0));
  filter.addEventListener("input", () => {
    const text = filter.value.trim().toLowerCase();
    wanted = data.names.map((name) => name.toLowerCase().includes(text));
    count.textContent = text ? `${wanted.filter(Boolean).length} of ${wanted.length} classes` : "";
    redraw();
  });
  addEventListener("resize", () => move(0, 0));
  if (sheet) sheet.decode().then(redraw);
  redraw();
})();
