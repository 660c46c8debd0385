// The page. The URL fragment alone determines what is shown (#item=…, #image=…, &k, &label, &view=map), so that
// back, forward and bookmarks work. Names and labels are untrusted: they are inserted as text, never as HTML.
import { SpaceMap } from "./map.js";

const byId = (id) => document.getElementById(id);
const currentQuery = () => new URLSearchParams(location.hash.slice(1));
const navigate = (changes) => { location.hash = fragment(changes); };
const thumbnail = (id, size = 256) => `/api/items/${id}/thumbnail?size=${size}`;
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
const uploads = new Map();  // number -> uploaded file, until the page is reloaded
const results = new Map();  // query -> its result, so that going back is instant
const hues = new Map();  // label -> hue, the same in the grid and on the map
const DEFAULT_K = 24;
const MAP_UPDATE = 30_000;  // milliseconds between updates of a visible map
const START_HEADING = byId("heading").textContent;
let limits = { max_upload_mb: 20 };
let pending = new AbortController();

const space = new SpaceMap({
  canvas: byId("canvas"), tip: byId("tip"), hues, thumbnail,
  open: (id) => navigate({ item: id, image: null, view: null }),
});

function fragment(changes) {
  const next = currentQuery();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  }
  return "#" + next;
}

async function api(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not respond. Is it still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(sentence(body.detail ?? `The server responded with status ${response.status}.`));
  return body;
}

async function show() {
  pending.abort();
  pending = new AbortController();
  const query = currentQuery();
  const onMap = query.get("view") === "map";
  document.body.classList.toggle("on-map", onMap);
  byId("map").hidden = !onMap;
  byId("found").hidden = onMap;
  byId("to-search").href = fragment({ view: null });
  byId("to-map").href = fragment({ view: "map" });
  byId(onMap ? "to-map" : "to-search").setAttribute("aria-current", "page");
  byId(onMap ? "to-search" : "to-map").removeAttribute("aria-current");
  byId("label").value = query.get("label") ?? "";
  byId("k").value = byId("k-shown").value = query.get("k") ?? DEFAULT_K;
  showQuery(query);
  if (onMap) await showMap(query);
  else await showResults(query);
}

function showQuery(query) {
  const image = byId("query");
  const file = uploads.get(query.get("image"));
  image.hidden = !(query.has("item") || file);
  byId("drop").classList.toggle("filled", !image.hidden);
  if (query.has("item")) image.src = `/api/items/${encodeURIComponent(query.get("item"))}/image`;
  else if (file) image.src = file.url;
  else image.removeAttribute("src");
  image.alt = query.has("item") ? `Query: item ${query.get("item")}` : file ? `Query: ${file.name}` : "";
}

async function showResults(query) {
  const key = String(query);
  const hadFocus = byId("grid").contains(document.activeElement);
  try {
    if (!results.has(key)) {
      showMessage("Searching…");
      results.set(key, await search(query, pending.signal));
      scrollTo(0, 0);
    }
    const { item, neighbours } = results.get(key);
    showMessage(neighbours.length ? "" : "No images found. Add images with `nearkin index`.");
    byId("heading").textContent = title(query, item, neighbours.length);
    document.title = item ? `${item.name} · nearkin` : "nearkin";
    if (item) byId("query").alt = `Query: ${item.name}${item.label ? `, ${item.label}` : ""}`;
    byId("grid").replaceChildren(...neighbours.map(tile));
    if (hadFocus) byId("heading").focus();
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("heading").textContent = "Search failed";
    byId("grid").replaceChildren();
    showMessage(error.message, true);
  }
}

function search(query, signal) {
  const options = new URLSearchParams({ k: query.get("k") ?? DEFAULT_K, label: query.get("label") ?? "" });
  const item = encodeURIComponent(query.get("item") ?? "");
  if (item) return api(`/api/items/${item}/neighbours?${options}`, { signal });
  if (!query.has("image")) return api(`/api/items?${options}`, { signal }).then((items) => ({ neighbours: items }));
  const file = uploads.get(query.get("image"));
  if (!file) throw new Error("Your image was lost when the page was reloaded. Please choose it again.");
  const form = new FormData();
  form.append("file", file.blob, file.name);
  for (const [name, value] of options) form.append(name, value);
  return api("/api/search", { method: "POST", body: form, signal });
}

function title(query, item, count) {
  const label = query.get("label");
  if (!item && !query.has("image")) return label ? `Items with label ${label}` : START_HEADING;
  return `${count} nearest to ${item ? item.name : "your image"}${label ? ` with label ${label}` : ""}`;
}

function make(kind, properties, ...children) {
  const element = Object.assign(document.createElement(kind), properties);
  element.append(...children);
  return element;
}

function tile(each) {
  const frame = make("span", { className: "frame" });
  const missing = () => { frame.replaceChildren("file missing"); frame.classList.add("missing"); };
  const alt = each.label ? `${each.name}, ${each.label}` : each.name;
  frame.append(make("img", { loading: "lazy", decoding: "async", alt, onerror: missing, src: thumbnail(each.id) }));
  const label = make("span", { className: each.label ? "label" : "label none" }, each.label || each.name);
  label.style.setProperty("--hue", hues.get(each.label) ?? 0);
  const caption = make("span", { className: "caption" }, label);
  if (each.distance !== undefined) {
    caption.append(make("span", { className: "distance", title: "distance" }, each.distance.toFixed(3)));
  }
  const href = fragment({ item: each.id, image: null });
  return make("li", {}, make("a", { href, title: each.name }, frame, caption));
}

async function showMap(query) {
  const { signal } = pending;
  space.mark(query.has("item") ? Number(query.get("item")) : null, query.get("label"));
  if (space.points.length) space.resize();
  else showMapMessage("Loading the map…");
  for (;;) {
    let wait = MAP_UPDATE / 10;
    try {
      const { ready, points } = await api("/api/map", { signal });
      if (ready || points.length) {
        showMapMessage(points.length ? "" : "The gallery is empty.");
        byId("map").ariaBusy = "false";
        space.show(points);
      } else showMapMessage("Computing the map. This takes up to a minute…");
      if (ready) wait = MAP_UPDATE;
      else if (!points.length) wait = 700;
    } catch (error) {
      if (error.name === "AbortError") return;  // another view is shown
      showMapMessage(error.message);
    }
    await new Promise((wake) => setTimeout(wake, wait));
    while (document.hidden) await new Promise((wake) => setTimeout(wake, 700));
  }
}

function showMapMessage(text) {
  byId("map-message").textContent = text;
}

function showMessage(text, isError = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("error", isError);
}

function upload(file) {
  if (!file) return;
  if (file.size > limits.max_upload_mb * 2 ** 20) {
    const text = `${file.name} is larger than ${limits.max_upload_mb} MB. Choose a smaller image.`;
    return byId("map").hidden ? showMessage(text, true) : showMapMessage(text);
  }
  const number = String(uploads.size + 1);
  uploads.set(number, { blob: file, name: file.name || "pasted image", url: URL.createObjectURL(file) });
  navigate({ image: number, item: null, view: null });
}

byId("file").addEventListener("change", () => { upload(byId("file").files[0]); byId("file").value = ""; });
document.addEventListener("paste", (event) => upload([...event.clipboardData.files][0]));
document.addEventListener("dragover", (event) => { event.preventDefault(); byId("drop").classList.add("over"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) byId("drop").classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  byId("drop").classList.remove("over");
  upload(event.dataTransfer.files[0]);
});
byId("k").addEventListener("input", () => { byId("k-shown").value = byId("k").value; });
byId("k").addEventListener("change", () => location.replace(fragment({ k: byId("k").value })));
const filter = () => {
  const text = byId("label").value;
  navigate({ label: hues.has(text) ? text : text.trim() });
};
byId("label").addEventListener("change", filter);
byId("label").addEventListener("input", ({ inputType }) => {  // not typed: cleared with the × button, or chosen from the list
  if (!inputType || inputType === "insertReplacementText") filter();
});
byId("query").addEventListener("error", () => { byId("query").hidden = true; byId("drop").classList.remove("filled"); });
for (const [id, factor] of [["zoom-in", 1.6], ["zoom-out", 1 / 1.6], ["zoom-all", 0]]) {
  byId(id).addEventListener("click", () => space.zoom(factor));
}
window.addEventListener("hashchange", show);

try {
  const [health, labels] = await Promise.all([api("/api/health"), api("/api/labels")]);
  limits = health;
  const counts = [`${health.items.toLocaleString()} images`, `${labels.length.toLocaleString()} labels`];
  byId("size").textContent = counts.slice(0, labels.length ? 2 : 1).join(", ");
  labels.forEach(({ label, items }, n) => {
    hues.set(label, Math.round(n * 137.508) % 360);
    byId("labels").append(make("option", { value: label, label: `${label} (${items})` }));
  });
  byId("label").disabled = !labels.length;
} catch (error) {
  showMessage(error.message, true);
}
show();
