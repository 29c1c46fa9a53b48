// Makes the elements of a word, one after the other.
//
// buffers: y: u32
// params: n
// over: i
// $buffer: y, $lanes: 4, $bits: 8, $mask: 255, $code: v = e;
var word = 0u;
for (var lane = 0u; lane < ${lanes}u; lane++) {
  let e = i * ${lanes}u + lane;
  if (e < p.n) {
    var v = 0u;
    $code
    word |= (v & ${mask}u) << (lane * ${bits}u);
  }
}
$buffer[i] = word;
