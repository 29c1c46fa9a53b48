// The place of the index at `k` on an axis of `n`. One that names nothing leaves its column off, and is given a place behind
// the last.
//
// buffers: ids: u32
// $is_pair: false, $is_float: flag
fn hot(k: u32, n: u32) -> u32 {
  #if is_pair
  let pair = ids[k];
  let at = bitcast<i32>(pair.x);
  if (pair.y != select(0u, 0xffffffffu, at < 0)) { return n; }
  #else
  #if is_float
  // The fraction is cut off; what is no number counts as 0.
  let bits = ids[k];
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0u; }
  let value = bitcast<f32>(bits);
  if (abs(value) >= 2147483648.0) { return n; }
  let at = i32(value);
  #else
  let at = bitcast<i32>(ids[k]);
  #end
  #end
  if (at >= 0) { return u32(at); }
  if (at < -i32(n)) { return n; }
  return u32(at + i32(n));
}
