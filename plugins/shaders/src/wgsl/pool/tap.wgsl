// An element of a window whose largest is wanted.
//
// with: var<private> best: f32; var<private> best_at: u32; var<private> is_first: bool;
// over: at, base
// $type: f32, $load: f32(base + at)
// $is_nan: isnan_f(value) && !isnan_f(best)
let value: $type = $load;
if (is_first || value > best || ($is_nan)) {
  is_first = false;
  best = value;
  best_at = at;
}
