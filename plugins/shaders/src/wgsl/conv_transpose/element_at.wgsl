// Which element of the input a position of the padded output is on; -1 for none.
fn element_at(position: i32, stride: i32, per: f32, n: i32) -> i32 {
  let q = i32((f32(position) + 0.5) * per);
  return select(-1, q, position >= 0 && q * stride == position && q < n);
}
