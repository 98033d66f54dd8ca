// The staircase: units over time. Forward and recompute climb, backward descends, kept states are horizontal bars.
"use strict";

function drawStaircase(view, canvas) {
  const { pen, width, height } = sharp(canvas);
  const floor = height - BOTTOM, tall = floor - 10, units = Math.max(1, view.units);
  const y = (unit) => floor - (unit / units) * tall;
  const x = (edge) => xOf(view, edge, width);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, width - LEFT - RIGHT, height);
  pen.clip();
  bars(view, pen, x, y, width);
  const first = rowAt(view, view.from), last = rowAt(view, view.to);
  if (last - first <= 6000 && !view.firstUnit) stairs(view, pen, x, y, first, last);
  else columns(view, pen, y, width);
  pen.restore();
  pen.fillStyle = colour("ink");
  pen.textAlign = "right";
  const step = Math.max(1, Math.round(niceStep(units, 4)));
  for (let unit = 0; unit <= units; unit += step) {
    pen.fillText(unit.toLocaleString("en"), LEFT - 7, y(unit) + 4);
    pen.fillRect(LEFT - 4, y(unit), 4, 1);
  }
  sideTitle(pen, view.unit + "s", floor / 2);
  pen.fillStyle = colour("ink");
  pen.fillRect(LEFT - 1, 4, 1, floor - 4);
  pen.fillRect(LEFT - 1, floor, width - LEFT - RIGHT + 1, 1);
  timeAxis(view, pen, width, floor);
  cursorLine(view, pen, view.hover, 0.5, 4, floor, width);
  cursorLine(view, pen, view.cursor, 1, 4, floor, width); // what is drawn is done
}

function bars(view, pen, x, y, width) {
  const least = view.kept.length > 6000 ? (view.to - view.from) / (width - LEFT - RIGHT) : 0;
  pen.lineWidth = view.units > 200 ? 1 : 2;
  pen.strokeStyle = view.colours.state;
  for (const [state, , first, last] of view.kept) {
    if (first > view.cursor || view.edges[last] < view.from || view.edges[first] > view.to) continue;
    const end = Math.min(view.edges[last], view.edges[view.cursor + 1]);
    if (end - view.edges[first] < least) continue;
    pen.beginPath();
    pen.moveTo(x(view.edges[first]), y(state));
    pen.lineTo(x(end), y(state));
    pen.stroke();
  }
  pen.lineWidth = 1;
}

function stairs(view, pen, x, y, first, last) {
  for (let row = first; row <= last; row++) {
    if (!RANGES.has(view.code[row])) continue;
    const low = view.first[row], high = low + view.second[row], back = view.code[row] === CODE.pullback;
    pen.globalAlpha = row > view.cursor ? 0.13 : 1;
    pen.strokeStyle = view.colours[PHASES[view.phase[row]]];
    pen.lineWidth = view.code[row] === CODE.advance ? 1.5 : 3;
    pen.beginPath();
    pen.moveTo(x(view.edges[row]), y(back ? high : low));
    pen.lineTo(x(view.edges[row + 1]), y(back ? low : high));
    pen.stroke();
  }
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
}

// More rows than pixels: for each pixel and phase, the units that its rows touch.
function columns(view, pen, y, width) {
  const inner = Math.round(width - LEFT - RIGHT), scale = inner / (view.to - view.from);
  const low = new Float64Array(4 * inner).fill(Infinity), high = new Float64Array(4 * inner).fill(-1);
  const pale = new Uint8Array(inner);
  for (let row = rowAt(view, view.from); row < view.n && view.edges[row] <= view.to; row++) {
    if (!RANGES.has(view.code[row]) && !view.firstUnit) continue;
    const a = view.firstUnit ? view.firstUnit[row] : view.first[row];
    const b = view.stopUnit ? view.stopUnit[row] : view.first[row] + view.second[row];
    const from = Math.max(0, Math.floor((view.edges[row] - view.from) * scale));
    const to = Math.min(inner - 1, Math.max(from, Math.ceil((view.edges[row + 1] - view.from) * scale) - 1));
    for (let pixel = from; pixel <= to; pixel++) {
      const at = 4 * pixel + view.phase[row];
      if (a < low[at]) low[at] = a;
      if (b > high[at]) high[at] = b;
      if (row > view.cursor) pale[pixel] = 1;
    }
  }
  for (let phase = 0; phase < 3; phase++) {
    pen.fillStyle = view.colours[PHASES[phase]];
    for (let pixel = 0; pixel < inner; pixel++) {
      const at = 4 * pixel + phase;
      if (high[at] < 0) continue;
      pen.globalAlpha = pale[pixel] ? 0.13 : 0.85;
      pen.fillRect(LEFT + pixel, y(high[at]), 1, Math.max(1, y(low[at]) - y(high[at])));
    }
  }
  pen.globalAlpha = 1;
}
