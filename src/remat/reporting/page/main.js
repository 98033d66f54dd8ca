// Draws the charts, and handles mouse, touch, keys, buttons and the slider.
"use strict";

function zoom(view, factor, around) {
  const end = view.edges[view.n] || 1, least = Math.max(end * 1e-7, Number.MIN_VALUE);
  const middle = around === undefined ? (view.from + view.to) / 2 : around;
  const size = Math.min(end, Math.max(least, (view.to - view.from) * factor));
  const share = (middle - view.from) / (view.to - view.from);
  look(view, middle - share * size, size);
}

function look(view, from, size) {
  const end = view.edges[view.n] || 1;
  view.from = Math.min(Math.max(0, from), end - size);
  view.to = view.from + size;
  changed(view);
}

function pan(view, share) {
  look(view, view.from + share * (view.to - view.from), view.to - view.from);
}

function lookAt(view, row) {
  const middle = (view.edges[row] + view.edges[row + 1]) / 2, size = view.to - view.from;
  if (middle < view.from || middle > view.to) look(view, middle - size / 2, size);
}

function moveTo(view, row) {
  view.cursor = Math.min(view.n - 1, Math.max(0, row));
  view.hover = undefined;
  view.moved = true;
  lookAt(view, view.cursor);
  view.say(view.cursor);
  changed(view);
}

const ACTIONS = {
  in: (view) => zoom(view, 0.5),
  out: (view) => zoom(view, 2),
  fit: (view) => look(view, 0, view.edges[view.n] || 1),
  left: (view) => pan(view, -0.2),
  right: (view) => pan(view, 0.2),
  peak: (view) => {
    const end = view.edges[view.n] || 1, size = Math.min(view.to - view.from, end / 8);
    view.cursor = Math.max(0, view.peak.row);
    view.moved = true;
    view.say(view.cursor);
    look(view, peakPlace(view) - size / 2, size);
  },
  previous: (view) => moveTo(view, view.cursor - 1),
  next: (view) => moveTo(view, view.cursor + 1),
};
const KEYS = {
  "+": "in", "=": "in", "-": "out", _: "out", 0: "fit", Home: "fit", ArrowLeft: "left", ArrowRight: "right",
  p: "peak", P: "peak", "[": "previous", "]": "next", ",": "previous", ".": "next",
};

function describe(view, row) {
  const kept = view.kept.filter(([, , first, last]) => first <= row && row < last).map(([state]) => state);
  const count = view.keptCount ? view.keptCount[row] : kept.length; // of a long trace only the longest bars are known
  const some = kept.slice(0, 6).join(", ") + (count > 6 || count > kept.length ? `, … (${count} in all)` : "");
  const parts = [
    `op ${(indexOf(view, row) + 1).toLocaleString("en")} of ${view.events.toLocaleString("en")}: ${opText(view, row)}`,
    `${PHASES[view.phase[row]]}, at ${timeText(view, view.time[row])}, ` +
      `${view.group > 1 ? "its group takes" : "takes"} ${timeText(view, view.seconds[row])}`,
    `live ${bytesText(view.total[row])} = states ${bytesText(view.state[row])} + tapes ${bytesText(view.tape[row])} ` +
      `+ cotangents ${bytesText(view.cotangent[row])}`,
  ];
  if (view.predicted) parts.push(`predicted ${bytesText(view.predicted[row])}`);
  if (view.allocated) parts.push(`allocated ${bytesText(view.allocated[row])}`);
  parts.push(count ? `kept states: ${some}` : "no state is kept");
  if (view.group > 1) parts.push(`a group of ${view.group} ops, shown at its most live bytes`);
  return parts;
}

function hoverOn(view, canvas, tip) {
  const show = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left;
    if (x < LEFT || x > box.width - RIGHT) return hide();
    const value = valueAt(view, x, box.width), pixel = (view.to - view.from) / (box.width - LEFT - RIGHT);
    view.hover = rowIn(view, value - pixel / 2, value + pixel / 2);
    tip.replaceChildren(...describe(view, view.hover).map((text) => Object.assign(document.createElement("div"), { textContent: text })));
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth - 4))}px`;
    changed(view);
  };
  const hide = () => {
    view.hover = undefined;
    tip.hidden = true;
    changed(view);
  };
  canvas.addEventListener("pointermove", show);
  canvas.addEventListener("pointerleave", hide);
}

function dragOn(view, canvas) {
  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    const before = [...fingers.values()], moved = event.clientX - fingers.get(event.pointerId);
    fingers.set(event.pointerId, event.clientX);
    const after = [...fingers.values()], inner = canvas.clientWidth - LEFT - RIGHT;
    if (after.length === 1) pan(view, -moved / inner);
    else if (Math.abs(after[0] - after[1]) > 5) zoom(view, Math.abs(before[0] - before[1]) / Math.abs(after[0] - after[1]));
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("dblclick", (event) => zoom(view, 0.25, valueAt(view, event.offsetX, canvas.clientWidth)));
  canvas.addEventListener("wheel", (event) => {
    const out = event.deltaY > 0, all = view.to - view.from >= (view.edges[view.n] || 1);
    if (out && all) return; // nothing to zoom out of: let the page scroll
    event.preventDefault();
    zoom(view, out ? 1.25 : 0.8, valueAt(view, event.offsetX, canvas.clientWidth));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    ACTIONS[action](view);
  });
}

function mapOn(view, canvas) {
  const go = (event) => {
    if (event.buttons === 0) return;
    const end = view.edges[view.n] || 1, size = view.to - view.from;
    look(view, ((event.offsetX - LEFT) / (canvas.clientWidth - LEFT - RIGHT)) * end - size / 2, size);
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); go(event); });
  canvas.addEventListener("pointermove", go);
}

function replayOn(view, section) {
  const slider = section.querySelector("input.replay"), play = section.querySelector("button.play");
  slider.max = view.n - 1;
  slider.value = view.cursor;
  let timer = 0;
  const stop = () => { cancelAnimationFrame(timer); timer = 0; play.textContent = "Play"; };
  slider.addEventListener("input", () => { stop(); moveTo(view, Number(slider.value)); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    play.textContent = "Pause";
    if (view.cursor >= view.n - 1) view.cursor = 0;
    const began = performance.now(), from = view.cursor, pace = Math.max(view.n / 12000, 0.004);
    const step = (now) => {
      moveTo(view, Math.floor(from + (now - began) * pace));
      if (view.cursor >= view.n - 1) stop(); else timer = requestAnimationFrame(step);
    };
    timer = requestAnimationFrame(step);
  });
  view.listeners.push(() => { slider.value = view.cursor; });
}

function start(view, section) {
  const chart = section.querySelector("canvas.chart"), map = section.querySelector("canvas.map");
  const stairs = section.querySelector("canvas.stairs"), levels = section.querySelector("canvas.levels");
  const words = section.querySelector(".readout");
  view.say = (row) => { words.textContent = describe(view, row).join(" · "); };
  const paint = () => {
    view.colours = Object.fromEntries([...KINDS, ...PHASES].map((name) => [name, colour(name)]));
    drawLiveness(view, chart);
    drawMap(view, map);
    drawLevels(view, levels);
    drawStaircase(view, stairs);
  };
  view.listeners.push(paint);
  for (const canvas of [chart, stairs]) {
    hoverOn(view, canvas, canvas.parentElement.querySelector(".tip"));
    dragOn(view, canvas);
  }
  mapOn(view, map);
  for (const button of section.querySelectorAll("button[data-do]")) {
    button.addEventListener("click", () => ACTIONS[button.dataset.do](view));
  }
  section.querySelector("select.axis").addEventListener("change", (event) => { setAxis(view, event.target.value); changed(view); });
  section.querySelector("select.axis").value = view.axis;
  const always = section.querySelector("input.always");
  if (always) always.addEventListener("change", () => { view.extra = always.checked ? view.always : 0; changed(view); });
  replayOn(view, section);
  new ResizeObserver(() => changed(view)).observe(chart);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed(view));
  view.say(view.cursor);
  paint();
  section.dataset.ready = "yes";
}

(async () => {
  try {
    const views = await Promise.all(DATA.views.map(makeView));
    const sections = document.querySelectorAll("section.view");
    views.forEach((view, i) => {
      if (view.n) return start(view, sections[i]);
      const place = sections[i].querySelector(".trouble");
      place.hidden = false;
      place.textContent = "There are no events to draw.";
      sections[i].dataset.ready = "yes";
    });
  } catch (error) {
    for (const place of document.querySelectorAll(".trouble")) {
      place.hidden = false;
      place.textContent = `The charts cannot be drawn by this browser (${error.message}); the tables below are complete.`;
    }
  }
})();
