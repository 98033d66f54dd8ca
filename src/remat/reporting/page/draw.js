// What both charts share: a sharp canvas, colours of the theme, numbers as text, axes, and mapping rows to pixels.
"use strict";

const LEFT = 84, RIGHT = 12;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function sharp(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height };
}

function bytesText(size) {
  if (size < 1024) return `${Math.round(size)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  do { size /= 1024; unit++; } while (size >= 1024 && unit < units.length - 1);
  return `${parseFloat(size.toFixed(2))} ${units[unit]}`;
}

function timeText(view, time) {
  if (!view.timed) return `${parseFloat(time.toPrecision(6)).toLocaleString("en")} ${view.unit} times`;
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (time >= scale) return `${parseFloat((time / scale).toPrecision(3))} ${unit}`;
  }
  return time ? `${parseFloat((time * 1e9).toPrecision(3))} ns` : "0 s";
}

function niceStep(range, count) {
  const rough = range / count, base = 10 ** Math.floor(Math.log10(rough));
  return base * [1, 2, 5, 10].find((factor) => factor * base >= rough);
}

function byteSteps(most) {
  let unit = 1;
  while (most / unit > 4) unit *= most / unit > 8 ? 4 : 2;
  return Array.from({ length: Math.floor(most / unit) }, (_, i) => (i + 1) * unit);
}

function xOf(view, value, width) {
  return LEFT + ((value - view.from) / (view.to - view.from)) * (width - LEFT - RIGHT);
}

function valueAt(view, x, width) {
  return view.from + ((x - LEFT) / (width - LEFT - RIGHT)) * (view.to - view.from);
}

// Tape bytes at a point (0 to 1) within a row: they grow while a range is recorded and fall while it is pulled back.
function tapeAt(view, row, place) {
  const tape = view.tape[row], least = view.leastTape[row];
  if (tape === least) return tape;
  return view.code[row] === CODE.pullback ? tape + (least - tape) * place : least + (tape - least) * place;
}

// For each pixel, the row with the most live bytes, and its tape bytes there. Every row that a pixel touches counts, so
// no peak is lost.
function envelope(view, from, to, width) {
  const best = new Int32Array(width).fill(-1), scale = width / (to - from);
  const tapes = new Float64Array(width), most = new Float64Array(width).fill(-1);
  const allocated = view.allocated ? new Float64Array(width) : null;
  let row = rowAt(view, from);
  while (row > 0 && view.edges[row] >= from) row--;
  for (; row < view.n && view.edges[row] <= to; row++) {
    const first = Math.max(0, Math.floor((view.edges[row] - from) * scale));
    const last = Math.min(width - 1, Math.max(first, Math.ceil((view.edges[row + 1] - from) * scale) - 1));
    if (view.edges[row + 1] < from) continue;
    const slopes = view.tape[row] !== view.leastTape[row], size = view.edges[row + 1] - view.edges[row];
    for (let pixel = first; pixel <= last; pixel++) {
      let tape = view.tape[row];
      if (slopes && size > 0) {
        const edge = from + (pixel + (view.code[row] === CODE.pullback ? 0 : 1)) / scale; // where in the pixel tapes are largest
        tape = tapeAt(view, row, Math.min(1, Math.max(0, (edge - view.edges[row]) / size)));
      }
      const total = view.state[row] + tape + view.cotangent[row];
      if (total > most[pixel]) { most[pixel] = total; best[pixel] = row; tapes[pixel] = tape; }
      if (allocated && view.allocated[row] > allocated[pixel]) allocated[pixel] = view.allocated[row];
    }
  }
  return { best, tapes, allocated };
}

// Ticks and the title of the axis below a chart.
function timeAxis(view, pen, width, bottom) {
  const step = niceStep(view.to - view.from, Math.max(2, (width - LEFT) / 150));
  pen.fillStyle = colour("ink");
  pen.textAlign = "center";
  for (let value = Math.ceil(view.from / step) * step; value <= view.to; value += step) {
    const x = xOf(view, value, width);
    pen.fillRect(x, bottom, 1, 4);
    const whole = Math.round(value + 1).toLocaleString("en"), plain = parseFloat(value.toPrecision(6)).toLocaleString("en");
    const text = view.axis !== "time" ? whole : view.timed ? timeText(view, value) : plain;
    const half = pen.measureText(text).width / 2;
    pen.fillText(text, Math.min(x, width - half - 1), bottom + 16);
  }
  pen.fillStyle = colour("soft");
  const title = view.axis !== "time" ? "ops" : view.timed ? "time" : `time (the forward of a ${view.unit} is 1)`;
  pen.fillText(title, (LEFT + width - RIGHT) / 2, bottom + 32);
}

// Ticks and the title of the axis of bytes, at the left of a chart.
function bytesAxis(pen, most, scale, floor, top, inner, title) {
  pen.fillStyle = colour("ink");
  pen.textAlign = "right";
  for (const value of byteSteps(most)) {
    pen.fillText(bytesText(value), LEFT - 7, floor - value * scale + 4);
    pen.fillRect(LEFT - 4, floor - value * scale, 4, 1);
  }
  pen.fillText("0", LEFT - 7, floor + 4);
  pen.fillRect(LEFT - 1, top, 1, floor - top);
  pen.fillRect(LEFT - 1, floor, inner + 1, 1);
  sideTitle(pen, title, (top + floor) / 2);
}

function sideTitle(pen, title, middle) {
  pen.save();
  pen.fillStyle = colour("soft");
  pen.textAlign = "center";
  pen.translate(12, middle);
  pen.rotate(-Math.PI / 2);
  pen.fillText(title, 0, 0);
  pen.restore();
}

// Text with its own background, so that no line or area runs through it.
function words(pen, text, x, y, align, name) {
  const width = pen.measureText(text).width, left = align === "right" ? x - width : x;
  pen.fillStyle = colour("paper");
  pen.fillRect(left - 3, y - 11, width + 6, 15);
  pen.fillStyle = colour(name);
  pen.textAlign = "left";
  pen.fillText(text, left, y);
}

function cursorLine(view, pen, row, place, top, bottom, width) {
  if (row === undefined || row < 0) return;
  const x = xOf(view, view.edges[row] + place * (view.edges[row + 1] - view.edges[row]), width);
  if (x < LEFT || x > width - RIGHT) return;
  pen.strokeStyle = colour("ink");
  pen.setLineDash([]);
  pen.beginPath();
  pen.moveTo(Math.round(x) + 0.5, top);
  pen.lineTo(Math.round(x) + 0.5, bottom);
  pen.stroke();
}
