// Keys of two words, as those of one (`key_word.wgsl`).
//
// buffers: x: vec2<u32>
// $load: x[at], $is_float: flag, $is_signed: flag
// $nan_turned:
// $turned: ~
fn key(at: u32) -> vec2<u32> {
  var w = $load;
  #if is_float
  let size = w.y & 0x7fffffffu;
  if (size > 0x7ff00000u || (size == 0x7ff00000u && w.x != 0u)) {
    return vec2<u32>(${nan_turned}0xffffffffu);
  }
  if (size == 0u && w.x == 0u) { w = vec2<u32>(0u, 0u); }
  if ((w.y >> 31u) == 1u) { w = ~w; } else { w.y = w.y | 0x80000000u; }
  #else
  #if is_signed
  w.y = w.y ^ 0x80000000u;
  #end
  #end
  return ${turned}w;
}
fn above(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y > b.y || (a.y == b.y && a.x > b.x);
}
