// What is added to a score: minus infinity for a key that the query does not see, and what a mask has.
//
// buffers: counts: vec2<u32>, mask
// params: n_rows, past, left, right, mask_keys, mask_batch, mask_head, mask_row
// $has_counts: flag, $is_causal: flag, $has_left: flag, $has_right: flag, $has_mask: flag, $masked: bias + mask[at]
fn sight(batch: u32, head: u32, row: u32, col: u32) -> f32 {
  let key = i32(col);
  var bias = 0.0;
  #if has_counts
  let number = bitcast<i32>(counts[batch].x);
  let position = number - i32(p.n_rows) + i32(row);
  if (key >= number) { bias = -inf_f(); }
  #else
  let position = i32(p.past) + i32(row);
  #end
  #if is_causal
  if (key > position) { bias = -inf_f(); }
  #end
  #if has_left
  if (key < position - i32(p.left)) { bias = -inf_f(); }
  #end
  #if has_right
  if (key > position + i32(p.right)) { bias = -inf_f(); }
  #end
  #if has_mask
  // What a mask does not speak of is not seen. Its numbers are added to what else hides a key: what is no number stays so.
  if (col >= p.mask_keys) { return -inf_f(); }
  let at = batch * p.mask_batch + head * p.mask_head + row * p.mask_row + col;
  return $masked;
  #else
  return bias;
  #end
}
