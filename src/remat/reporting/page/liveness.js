// The liveness chart: live bytes by kind over time, stacked; budget, prediction, allocator and peak; and the map below.
"use strict";

const TOP = 24, BOTTOM = 40;

function drawLiveness(view, canvas) {
  const { pen, width, height } = sharp(canvas);
  const inner = Math.max(1, Math.round(width - LEFT - RIGHT)), floor = height - BOTTOM;
  const most = view.top + view.extra, scale = (floor - TOP) / (1.04 * most);
  const { best, tapes, allocated } = envelope(view, view.from, view.to, inner);
  if (view.extra) {
    pen.fillStyle = colour("always");
    pen.fillRect(LEFT, floor - view.extra * scale, inner, view.extra * scale);
  }
  stack(view, pen, best, tapes, inner, floor - view.extra * scale, scale);
  if (view.predicted) {
    line(pen, inner, floor, scale, "ink", [5, 3], 
      (pixel) => best[pixel] < 0 ? null : view.predicted[best[pixel]] - view.tape[best[pixel]] + tapes[pixel] + view.extra);
  }
  if (allocated) line(pen, inner, floor, scale, "allocated", [], (pixel) => allocated[pixel] + (view.extra ? view.before : 0));
  bytesAxis(pen, most, scale, floor, TOP, inner, "live memory");
  const right = peakPlace(view) > (view.from + view.to) / 2;
  if (view.planBytes && view.planBytes < view.budget && view.planBytes <= view.top) {
    levelLine(pen, "soft", "", floor - (view.planBytes + view.extra) * scale, width, right);
  }
  if (view.budget && view.budget <= view.top) {
    levelLine(pen, "budget", view.limitWord + " " + bytesText(view.budget), floor - (view.budget + view.extra) * scale, width, right);
  }
  timeAxis(view, pen, width, floor);
  cursorLine(view, pen, view.hover ?? (view.moved ? view.cursor : undefined), 0.5, TOP, floor, width);
  peakMark(view, pen, floor - (view.peak.size + view.extra) * scale, floor, width);
}

function stack(view, pen, best, tapes, inner, floor, scale) {
  for (let pixel = 0; pixel < inner; pixel++) {
    const row = best[pixel];
    if (row < 0) continue;
    let y = floor;
    for (const kind of KINDS) {
      const size = (kind === "tape" ? tapes[pixel] : view[kind][row]) * scale;
      if (!size) continue;
      pen.fillStyle = view.colours[kind];
      pen.fillRect(LEFT + pixel, y - size, 1, size);
      y -= size;
    }
  }
}

function line(pen, inner, floor, scale, name, dash, sizeAt) {
  pen.beginPath();
  let open = false;
  for (let pixel = 0; pixel < inner; pixel++) {
    const size = sizeAt(pixel);
    if (size === null) continue;
    const y = floor - size * scale;
    if (open) pen.lineTo(LEFT + pixel, y); else pen.moveTo(LEFT + pixel, y);
    pen.lineTo(LEFT + pixel + 1, y);
    open = true;
  }
  outlined(pen, name, dash, 1.5);
}

// Draw the path over a wider one in the colour of the background, so that it is visible on any area.
function outlined(pen, name, dash, width) {
  pen.strokeStyle = colour("paper");
  pen.lineWidth = width + 2;
  pen.globalAlpha = 0.7;
  pen.stroke();
  pen.globalAlpha = 1;
  pen.strokeStyle = colour(name);
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.stroke();
  pen.setLineDash([]);
  pen.lineWidth = 1;
}

// A dashed line across the chart, labelled on the side away from the peak.
function levelLine(pen, name, text, y, width, left) {
  pen.beginPath();
  pen.moveTo(LEFT, y);
  pen.lineTo(width - RIGHT, y);
  outlined(pen, name, [7, 4], 1);
  if (text) words(pen, text, left ? LEFT + 6 : width - RIGHT - 4, y - 6 < 26 ? y + 15 : y - 6, left ? "left" : "right", name);
}

// A recorded range is largest at its end, every other op during its whole length.
function peakPlace(view) {
  if (view.peak.row < 0) return 0;
  const row = view.peak.row;
  if (view.code[row] === CODE.record && view.tape[row] !== view.leastTape[row]) return view.edges[row + 1];
  return (view.edges[row] + view.edges[row + 1]) / 2;
}

// The peak is always marked: by a dot, or by an arrow at the edge if it is out of view.
function peakMark(view, pen, y, floor, width) {
  const row = view.peak.row;
  if (row < 0) return;
  const at = xOf(view, peakPlace(view), width), x = Math.min(width - RIGHT, Math.max(LEFT, at));
  const away = at < LEFT - 0.5 ? "◀ " : at > width - RIGHT + 0.5 ? " ▶" : "";
  const text = "peak " + view.peak.text;
  pen.fillStyle = pen.strokeStyle = colour("ink");
  pen.font = "bold 12px system-ui, sans-serif";
  if (!away) {
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x, floor);
    pen.stroke();
    pen.setLineDash([]);
    pen.beginPath();
    pen.arc(x, y, 4, 0, 7);
    pen.fill();
  }
  const right = x > width / 2;
  // The label is above the chart, where there are no lines; if it does not fit on its side of the peak, it moves over.
  const label = away === "◀ " ? away + text : text + away, size = pen.measureText(label).width;
  const tx = Math.max(LEFT, Math.min(width - RIGHT - size, right ? x - size : x));
  words(pen, label, tx, 13, "left", "ink");
  pen.font = "12px system-ui, sans-serif";
}

function drawMap(view, canvas) {
  const { pen, width, height } = sharp(canvas);
  const inner = Math.max(1, Math.round(width - LEFT - RIGHT)), end = view.edges[view.n] || 1;
  const { best, tapes } = envelope(view, 0, end, inner);
  stack(view, pen, best, tapes, inner, height, (height - 2) / view.top);
  const x = (value) => LEFT + (value / end) * inner;
  pen.fillStyle = colour("ink");
  pen.globalAlpha = 0.22;
  pen.fillRect(LEFT, 0, x(view.from) - LEFT, height);
  pen.fillRect(x(view.to), 0, LEFT + inner - x(view.to), height);
  pen.globalAlpha = 1;
  pen.strokeStyle = colour("ink");
  pen.strokeRect(x(view.from) + 0.5, 0.5, Math.max(2, x(view.to) - x(view.from) - 1), height - 1);
  if (view.peak.row >= 0) {
    pen.beginPath();
    pen.arc(x(peakPlace(view)), 5, 3, 0, 7);
    pen.fill();
  }
  pen.textAlign = "right";
  pen.fillText("all", LEFT - 7, height / 2 + 4);
}
