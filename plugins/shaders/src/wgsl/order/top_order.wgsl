// The place of a key among those of its line that were listed.
//
// buffers: order: u32, list: u32, counts: u32
// params: extent, inner, k
// with: fn key(at: u32) -> u32 { return at; } fn above(a: u32, b: u32) -> bool { return a > b; }
// over: i
let line = i / p.k;
let slot = i % p.k;
let n = counts[line];
if (slot < n) {
  let base = line / p.inner * p.extent * p.inner + line % p.inner;
  let first_out = line / p.inner * p.k * p.inner + line % p.inner;
  let at = list[i];
  let own = key(base + at * p.inner);
  var place = 0u;
  for (var j = 0u; j < n; j++) {
    let other = list[line * p.k + j];
    let found = key(base + other * p.inner);
    if (above(found, own) || (other < at && !above(own, found))) { place += 1u; }
  }
  order[first_out + place * p.inner] = at;
}
