// The page: what is shown follows from the address alone (#item=…, #picture=…, &k, &label, &view=map), so that
// back, forward and bookmarks work. Names and labels are strangers' words: they only ever become text.
import { SpaceMap } from "./map.js";

const the = (id) => document.getElementById(id);
const asked = () => new URLSearchParams(location.hash.slice(1));
const go = (changes) => { location.hash = address(changes); };
const thumbnail = (id, size = 256) => `/api/items/${id}/thumbnail?size=${size}`;
const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1) + (/[.?!]$/.test(words) ? "" : ".");
const pictures = new Map();  // number -> uploaded file; they live as long as the page
const answers = new Map();  // address -> what was found there, so that going back is instant
const hues = new Map();  // label -> hue, the same in the grid and on the map
const DEFAULT_K = 24;
const FOLLOW = 30_000;  // milliseconds after which a map in sight asks whether items came or went
const BEGIN = the("heading").textContent;
let limits = { max_upload_mb: 20 };
let inFlight = new AbortController();

const space = new SpaceMap({
  canvas: the("canvas"), tip: the("tip"), hues, thumbnail,
  open: (id) => go({ item: id, picture: null, view: null }),
});

function address(changes) {
  const next = asked();
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
    throw new Error("The server does not answer; is it still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(sentence(answer.detail ?? `The server answered ${response.status}.`));
  return answer;
}

async function show() {
  inFlight.abort();
  inFlight = new AbortController();
  const query = asked();
  const onMap = query.get("view") === "map";
  document.body.classList.toggle("on-map", onMap);
  the("map").hidden = !onMap;
  the("found").hidden = onMap;
  the("to-search").href = address({ view: null });
  the("to-map").href = address({ view: "map" });
  the(onMap ? "to-map" : "to-search").setAttribute("aria-current", "page");
  the(onMap ? "to-search" : "to-map").removeAttribute("aria-current");
  the("label").value = query.get("label") ?? "";
  the("k").value = the("k-shown").value = query.get("k") ?? DEFAULT_K;
  showQuery(query);
  if (onMap) await showMap(query);
  else await showFound(query);
}

function showQuery(query) {
  const picture = the("query");
  const file = pictures.get(query.get("picture"));
  picture.hidden = !(query.has("item") || file);
  the("drop").classList.toggle("filled", !picture.hidden);
  if (query.has("item")) picture.src = `/api/items/${encodeURIComponent(query.get("item"))}/picture`;
  else if (file) picture.src = file.url;
  else picture.removeAttribute("src");
  picture.alt = query.has("item") ? `Query: item ${query.get("item")}` : file ? `Query: ${file.name}` : "";
}

async function showFound(query) {
  const key = String(query);
  const hadFocus = the("grid").contains(document.activeElement);
  try {
    if (!answers.has(key)) {
      say("Searching…");
      answers.set(key, await find(query, inFlight.signal));
      scrollTo(0, 0);
    }
    const { item, neighbours } = answers.get(key);
    say(neighbours.length ? "" : "Nothing is here yet: add pictures with `nearkin index`.");
    the("heading").textContent = title(query, item, neighbours.length);
    document.title = item ? `${item.name} · nearkin` : "nearkin";
    if (item) the("query").alt = `Query: ${item.name}${item.label ? `, ${item.label}` : ""}`;
    the("grid").replaceChildren(...neighbours.map(tile));
    if (hadFocus) the("heading").focus();
  } catch (error) {
    if (error.name === "AbortError") return;
    the("heading").textContent = "That did not work";
    the("grid").replaceChildren();
    say(error.message, true);
  }
}

function find(query, signal) {
  const options = new URLSearchParams({ k: query.get("k") ?? DEFAULT_K, label: query.get("label") ?? "" });
  const item = encodeURIComponent(query.get("item") ?? "");
  if (item) return api(`/api/items/${item}/neighbours?${options}`, { signal });
  if (!query.has("picture")) return api(`/api/items?${options}`, { signal }).then((some) => ({ neighbours: some }));
  const file = pictures.get(query.get("picture"));
  if (!file) throw new Error("That picture is not kept when the page is loaded again; please choose it once more.");
  const form = new FormData();
  form.append("file", file.blob, file.name);
  for (const [name, value] of options) form.append(name, value);
  return api("/api/search", { method: "POST", body: form, signal });
}

function title(query, item, count) {
  const label = query.get("label");
  if (!item && !query.has("picture")) return label ? `Items of ${label}` : BEGIN;
  return `${count} nearest to ${item ? item.name : "your picture"}${label ? ` in ${label}` : ""}`;
}

function make(kind, properties, ...children) {
  const element = Object.assign(document.createElement(kind), properties);
  element.append(...children);
  return element;
}

function tile(each) {
  const frame = make("span", { className: "frame" });
  const gone = () => { frame.replaceChildren("file is gone"); frame.classList.add("gone"); };
  const alt = each.label ? `${each.name}, ${each.label}` : each.name;
  frame.append(make("img", { loading: "lazy", decoding: "async", alt, onerror: gone, src: thumbnail(each.id) }));
  const label = make("span", { className: each.label ? "label" : "label none" }, each.label || each.name);
  label.style.setProperty("--hue", hues.get(each.label) ?? 0);
  const words = make("span", { className: "words" }, label);
  if (each.distance !== undefined) {
    words.append(make("span", { className: "distance", title: "distance" }, each.distance.toFixed(3)));
  }
  const href = address({ item: each.id, picture: null });
  return make("li", {}, make("a", { href, title: each.name }, frame, words));
}

async function showMap(query) {
  const { signal } = inFlight;
  space.mark(query.has("item") ? Number(query.get("item")) : null, query.get("label"));
  if (space.points.length) space.resize();
  else tell("Loading the map…");
  for (;;) {
    let wait = FOLLOW / 10;
    try {
      const { ready, points } = await api("/api/map", { signal });
      if (ready || points.length) {
        tell(points.length ? "" : "The gallery is empty.");
        the("map").ariaBusy = "false";
        space.show(points);
      } else tell("The map is being computed; this takes up to a minute…");
      if (ready) wait = FOLLOW;
      else if (!points.length) wait = 700;
    } catch (error) {
      if (error.name === "AbortError") return;  // something else is shown
      tell(error.message);
    }
    await new Promise((wake) => setTimeout(wake, wait));
    while (document.hidden) await new Promise((wake) => setTimeout(wake, 700));
  }
}

function tell(words) {
  the("map-message").textContent = words;
}

function say(words, wrong = false) {
  the("message").textContent = words;
  the("message").classList.toggle("wrong", wrong);
}

function upload(file) {
  if (!file) return;
  if (file.size > limits.max_upload_mb * 2 ** 20) {
    const words = `${file.name} is larger than ${limits.max_upload_mb} MB; choose a smaller picture.`;
    return the("map").hidden ? say(words, true) : tell(words);
  }
  const number = String(pictures.size + 1);
  pictures.set(number, { blob: file, name: file.name || "pasted picture", url: URL.createObjectURL(file) });
  go({ picture: number, item: null, view: null });
}

the("file").addEventListener("change", () => { upload(the("file").files[0]); the("file").value = ""; });
document.addEventListener("paste", (event) => upload([...event.clipboardData.files][0]));
document.addEventListener("dragover", (event) => { event.preventDefault(); the("drop").classList.add("over"); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) the("drop").classList.remove("over"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  the("drop").classList.remove("over");
  upload(event.dataTransfer.files[0]);
});
the("k").addEventListener("input", () => { the("k-shown").value = the("k").value; });
the("k").addEventListener("change", () => location.replace(address({ k: the("k").value })));
const filter = () => {
  const words = the("label").value;
  go({ label: hues.has(words) ? words : words.trim() });
};
the("label").addEventListener("change", filter);
the("label").addEventListener("input", ({ inputType }) => {  // not typed: emptied by its cross, or picked from the list
  if (!inputType || inputType === "insertReplacementText") filter();
});
the("query").addEventListener("error", () => { the("query").hidden = true; the("drop").classList.remove("filled"); });
for (const [id, factor] of [["zoom-in", 1.6], ["zoom-out", 1 / 1.6], ["zoom-all", 0]]) {
  the(id).addEventListener("click", () => space.zoom(factor));
}
window.addEventListener("hashchange", show);

try {
  const [health, labels] = await Promise.all([api("/api/health"), api("/api/labels")]);
  limits = health;
  const counts = [`${health.items.toLocaleString()} pictures`, `${labels.length.toLocaleString()} labels`];
  the("size").textContent = counts.slice(0, labels.length ? 2 : 1).join(", ");
  labels.forEach(({ label, items }, n) => {
    hues.set(label, Math.round(n * 137.508) % 360);
    the("labels").append(make("option", { value: label, label: `${label} (${items})` }));
  });
  the("label").disabled = !labels.length;
} catch (error) {
  say(error.message, true);
}
show();
