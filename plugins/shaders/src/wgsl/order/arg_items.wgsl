// The place of a line's extreme: a thread walks along the line.
//
// buffers: y: vec2<u32>
// params: extent, inner
// with: fn key(at: u32) -> u32 { return at; } fn above(a: u32, b: u32) -> bool { return a > b; }
// over: i
// $takes: above(found, best)
let line = i;
let base = line / p.inner * p.extent * p.inner + line % p.inner;
var best = key(base);
var place = 0u;
for (var k = 1u; k < p.extent; k++) {
  let found = key(base + k * p.inner);
  if ($takes) {
    best = found;
    place = k;
  }
}
y[i] = vec2<u32>(place, 0u);
