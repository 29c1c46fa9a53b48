// The weight of a frequency in a mel band: a triangle, which ends where the one after the next begins.
//
// buffers: edges: u32, y
// params: cols
// over: i
let row = i / p.cols;
let col = i % p.cols;
let begin = edges[col];
let top = edges[col + 1u];
let end = edges[col + 2u];
var v = 0.0;
if (row == top) { v = 1.0; }
else if (row >= begin && row < top) { v = f32(row - begin) / f32(top - begin); }
else if (row > top && row < end) { v = f32(end - row) / f32(end - top); }
y[i] = v;
