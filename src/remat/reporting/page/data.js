// Decodes the JSON block that Python wrote into views: encoded columns become typed arrays.
"use strict";

const DATA = JSON.parse(document.getElementById("remat-data").textContent);
const OPS = DATA.ops, PHASES = DATA.phases; // words, by the numbers in the columns `code` and `phase`
const CODE = Object.fromEntries(OPS.map((word, code) => [word, code]));
const RANGES = new Set([CODE.advance, CODE.record, CODE.pullback, CODE.run]); // ops over units; the others have a state or nothing
const KINDS = ["state", "tape", "cotangent"];

async function inflate(text) {
  const deflated = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function decode(column) {
  const bytes = await inflate(column.z);
  const values = new Float64Array(column.n);
  let at = 0, sum = 0;
  for (let i = 0; i < column.n; i++) {
    let number = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      number += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    const value = number % 2 ? -(number + 1) / 2 : number / 2;
    sum = column.d ? sum + value : value;
    values[i] = sum * column.k;
  }
  return values;
}

async function decodeTimes(column) {
  const low = 10 ** (column.digits - 1);
  const codes = await decode(column);
  return codes.map((code) => {
    if (code === 0) return 0;
    const exponent = Math.floor((code - 1) / (9 * low));
    return (((code - 1) % (9 * low)) + low) * 10 ** (exponent + column.least);
  });
}

async function makeView(data) {
  const view = { ...data, n: data.columns.code.n };
  await Promise.all(Object.entries(data.columns).map(async ([name, column]) => {
    view[name] = name === "seconds" ? await decodeTimes(column) : await decode(column);
  }));
  const n = view.n;
  for (let i = 0; i < n; i++) view.leastTape[i] += view.tape[i]; // encoded as differences
  if (data.peak.row >= 0) KINDS.forEach((kind, i) => { view[kind][data.peak.row] = data.peak.kinds[i]; }); // never rounded
  view.total = new Float64Array(n);
  for (let i = 0; i < n; i++) view.total[i] = view.state[i] + view.tape[i] + view.cotangent[i];
  view.time = new Float64Array(n + 1);
  for (let i = 0; i < n; i++) view.time[i + 1] = view.time[i] + view.seconds[i];
  const stretch = view.time[n] > 0 ? data.span / view.time[n] : 1; // rounded times must still add up
  for (let i = 0; i <= n; i++) view.time[i] *= stretch;
  view.count = Float64Array.from({ length: n + 1 }, (_, i) => i);
  view.kept = view.keptState ? keptBars(view) : keptStates(view);
  view.cursor = n - 1;
  view.extra = 0; // bytes that are always live, where they are drawn
  view.listeners = [];
  setAxis(view, view.time[n] > 0 ? "time" : "count");
  return view;
}

function keptBars(view) {
  return Array.from(view.keptState, (state, i) => {
    return [state, view.keptLevel[i], view.keptFirst[i], view.keptFirst[i] + view.keptLast[i]];
  });
}

// Which states are kept from which row to which: [state, level, first, last].
function keptStates(view) {
  const open = new Map(), bars = [];
  for (let i = 0; i < view.n; i++) {
    const key = view.first[i] + "/" + view.second[i];
    if (view.code[i] === CODE.keep) open.set(key, i);
    else if (view.code[i] === CODE.drop && open.has(key)) {
      bars.push([view.first[i], view.second[i], open.get(key), i]);
      open.delete(key);
    }
  }
  for (const [key, first] of open) bars.push([...key.split("/").map(Number), first, view.n - 1]);
  return bars;
}

function setAxis(view, axis) {
  view.axis = axis;
  view.edges = view[axis];
  view.from = 0;
  view.to = view.edges[view.n] || 1;
}

function changed(view) {
  if (view.waiting) return;
  view.waiting = true;
  requestAnimationFrame(() => {
    view.waiting = false;
    view.listeners.forEach((listener) => listener());
  });
}

function opText(view, row) {
  const first = view.first[row], second = view.second[row];
  switch (view.code[row]) {
    case CODE.advance: case CODE.record: return `${OPS[view.code[row]]} ${first} to ${first + second}`;
    case CODE.pullback: return `pull back ${first + second} to ${first}`;
    case CODE.turn: return "turn";
    case CODE.run: return `run operation ${first}`;
    case CODE.free: return `free storage ${first}`;
    default: return `${OPS[view.code[row]]} state ${first} (${view.levels[second]})`;
  }
}

function indexOf(view, row) {
  return view.index ? view.index[row] : row;
}

function rowAt(view, x) {
  let low = 0, high = view.n - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (view.edges[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

// The row with the most live bytes of those that a stretch of the axis shows.
function rowIn(view, from, to) {
  let best = rowAt(view, from);
  for (let row = best; row < view.n && view.edges[row] < to; row++) if (view.total[row] > view.total[best]) best = row;
  return best;
}
