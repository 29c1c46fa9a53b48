// Stores four columns of a row at once, of the result or of a part of its sums.
//
// buffers: y: vec4<f32>
// params: rows, cols, n_batch
// with: fn finish(sum: f32, addend_base: u32, row: u32, col: u32, at: u32) -> f32 { return sum; }
// $number: f32, $element: f32, $is_part: flag
fn store(e: u32, part: u32, addend_base: u32, row: u32, col: u32, v: vec4<$number>) {
  if (row >= p.rows || col >= p.cols) { return; }
  #if is_part
  let at = ((part * p.n_batch + e) * p.rows + row) * p.cols + col;
  y[at >> 2u] = vec4<$element>(v.x, v.y, v.z, v.w);
  #else
  let at = (e * p.rows + row) * p.cols + col;
  y[at >> 2u] = vec4<$element>(
    $element(finish(v.x, addend_base, row, col + 0u, at + 0u)),
    $element(finish(v.y, addend_base, row, col + 1u, at + 1u)),
    $element(finish(v.z, addend_base, row, col + 2u, at + 2u)),
    $element(finish(v.w, addend_base, row, col + 3u, at + 3u)),
  );
  #end
}
