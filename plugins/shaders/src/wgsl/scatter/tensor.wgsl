// TensorScatter: an element of the updated rows, or of the cache.
//
// buffers: updates: u32, x: u32
// params: inner, rows, updated, per_batch
// with: var<private> v: u32;
// over: e
// $first: 0, $update: updates[at], $old: x[e]
let block = e / p.inner / p.rows;
let batch = block / p.per_batch;
var row = i32((e / p.inner) % p.rows) - ($first);
if (row < 0) { row += i32(p.rows); }
if (u32(row) < p.updated) {
  let at = (block * p.updated + u32(row)) * p.inner + e % p.inner;
  v = $update;
} else {
  v = $old;
}
