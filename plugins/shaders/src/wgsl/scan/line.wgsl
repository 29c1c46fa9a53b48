// A thread walks along a line.
//
// params: extent, inner
// over: i
// $start: 0.0, $write: sum += f32(base + k);
let line = i;
let base = line / p.inner * p.extent * p.inner + line % p.inner;
var sum = $start;
for (var k = 0u; k < p.extent; k++) {
  $write
}
