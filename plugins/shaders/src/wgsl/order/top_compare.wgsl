// The place of an element among its line's is the number of those before it; most are known soon not to have one.
//
// buffers: order: u32
// params: extent, inner, k
// with: fn key(at: u32) -> u32 { return at; } fn above(a: u32, b: u32) -> bool { return a > b; }
// over: i
let at = (i / p.inner) % p.extent;
let lane = i % p.inner;
let outer = i / p.inner / p.extent;
let base = outer * p.extent * p.inner + lane;
let own = key(i);
var place = 0u;
for (var j = 0u; j < p.extent && place < p.k; j++) {
  let found = key(base + j * p.inner);
  if (above(found, own) || (j < at && !above(own, found))) { place += 1u; }
}
if (place < p.k) { order[(outer * p.k + place) * p.inner + lane] = at; }
