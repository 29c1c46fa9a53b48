// The remainder of 64 bits, digit by digit: `n` is below 2^31, so that what is left never outgrows a word.
fn remainder(value: vec2<u32>, n: u32) -> u32 {
  var rest = value.y % n;
  for (var k = 0u; k < 32u; k++) {
    rest = (rest << 1u) | ((value.x >> (31u - k)) & 1u);
    if (rest >= n) { rest -= n; }
  }
  return rest;
}
