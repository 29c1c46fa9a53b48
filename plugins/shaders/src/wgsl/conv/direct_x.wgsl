// An element of a line of the image; 0 outside of it.
//
// buffers: x
// params: in_w: i32
// $functions:
$functions
fn x_at(line: u32, at: i32, is_line: bool) -> f32 {
  let is_in = is_line && at >= 0 && at < p.in_w;
  return select(0.0, f32(x[line + u32(clamp(at, 0, p.in_w - 1))]), is_in);
}
