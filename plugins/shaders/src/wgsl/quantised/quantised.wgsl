// A quotient, as the integer that it is nearest to, with a zero point, within limits.
fn quantised(x: f32, zero: i32, low: i32, high: i32) -> i32 {
  var q = round(x);
  // Far beyond what saturates; what is not a number becomes the lowest.
  q = select(-1048576.0, q, q > -1048576.0);
  q = select(q, 1048576.0, q > 1048576.0);
  return clamp(i32(q) + zero, low, high);
}
