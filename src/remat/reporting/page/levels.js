// The chart of states in levels other than the device: bytes in each level over time, stacked.
"use strict";

function drawLevels(view, canvas) {
  if (!canvas) return;
  const { pen, width, height } = sharp(canvas);
  const inner = Math.max(1, Math.round(width - LEFT - RIGHT)), floor = height - BOTTOM;
  const columns = view.otherLevels.map((_, i) => view["level" + i]);
  const sums = Array.from({ length: view.n }, (_, row) => columns.reduce((sum, sizes) => sum + sizes[row], 0));
  const most = Math.max(1, ...sums.filter((_, row) => row < 100000)), scale = (floor - 8) / (1.04 * most);
  for (let pixel = 0; pixel < inner; pixel++) {
    const from = valueAt(view, LEFT + pixel, width), to = valueAt(view, LEFT + pixel + 1, width);
    let row = rowAt(view, from);
    for (let next = row; next < view.n && view.edges[next] < to; next++) if (sums[next] > sums[row]) row = next;
    let y = floor;
    columns.forEach((sizes, i) => {
      pen.fillStyle = colour("level" + (i % 3));
      pen.fillRect(LEFT + pixel, y - sizes[row] * scale, 1, sizes[row] * scale);
      y -= sizes[row] * scale;
    });
  }
  bytesAxis(pen, most, scale, floor, 8, inner, "in other levels");
  timeAxis(view, pen, width, floor);
}
