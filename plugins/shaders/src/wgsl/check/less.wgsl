// Whether one integer of 64 bits is below another, low halves first.
fn is_less(a: vec2<u32>, b: vec2<u32>) -> bool {
  let x = bitcast<i32>(a.y);
  let y = bitcast<i32>(b.y);
  return x < y || (x == y && a.x < b.x);
}
