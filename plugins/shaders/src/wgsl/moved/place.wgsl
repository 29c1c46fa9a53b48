// Where the index at `k` is on an axis of `n` elements. What names nothing is moved to the nearest end, so that nothing
// else is ever read.
//
// buffers: ids: vec2<u32>
// $low: [k].x
fn place(k: u32, n: u32) -> u32 {
  var at = bitcast<i32>(ids$low);
  if (at < 0) { at += i32(n); }
  return u32(clamp(at, 0, i32(n) - 1));
}
