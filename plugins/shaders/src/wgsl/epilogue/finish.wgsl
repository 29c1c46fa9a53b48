// What becomes of a sum; `at` is the place in the result.
//
// buffers: addend, residual
// params: alpha: f32, beta: f32, addend_row, addend_col
// $activate: fn activate(v: f32) -> f32 { return v; }
// $number: f32, $has_alpha: flag, $has_addend: flag, $has_beta: flag, $has_residual: flag, $is_activated: flag
$activate
fn finish(sum: $number, addend_base: u32, row: u32, col: u32, at: u32) -> $number {
  var v = sum;
  #if has_alpha
  v *= p.alpha;
  #end
  #if has_addend
  #if has_beta
  v += p.beta * $number(addend[addend_base + row * p.addend_row + col * p.addend_col]);
  #else
  v += $number(addend[addend_base + row * p.addend_row + col * p.addend_col]);
  #end
  #end
  #if has_residual
  v += $number(residual[at]);
  #end
  #if is_activated
  v = activate(v);
  #end
  return v;
}
