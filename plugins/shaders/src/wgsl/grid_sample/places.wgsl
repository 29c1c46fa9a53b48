// Where a sample reads along an axis of `n` elements, NONE for those outside that count as 0, and their weights.
//
// $corners: flag, $is_nearest: flag, $is_cubic: flag, $n_places: 4, $is_moved: flag, $is_reflection: flag
const NONE = 0xffffffffu;
fn far(x: f32) -> f32 { return ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0; }
fn near(x: f32) -> f32 { return (1.25 * x - 2.25) * x * x + 1.0; }
fn reflected(position: f32, low: f32, high: f32) -> f32 {
  let length = high - low;
  if (length <= 0.0) { return low; }
  if (position >= low && position <= high) { return position; }
  let below = position < low;
  let distance = select(position - high, low - position, below);
  let times = floor(distance / length);
  let rest = distance - times * length;
  let is_even = times - 2.0 * floor(times / 2.0) == 0.0;
  return select(high - rest, low + rest, is_even == below);
}
fn places(normalised: f32, n: f32, at: ptr<function, array<u32, 4>>, weights: ptr<function, array<f32, 4>>) {
  #if corners
  var position = (normalised + 1.0) / 2.0 * (n - 1.0);
  #else
  var position = ((normalised + 1.0) * n - 1.0) / 2.0;
  #end
  #if is_nearest
  position = round(position);
  #end
  #if corners
  let low = 0.0;
  let high = n - 1.0;
  #else
  let low = -0.5;
  let high = n - 0.5;
  #end
  #if is_moved
  if (position < low || position > high) {
    #if is_reflection
    position = reflected(position, low, high);
    #else
    position = clamp(position, 0.0, n - 1.0);
    #end
  }
  #end
  #if is_nearest
  let first = trunc(position);
  #else
  #if is_cubic
  let first = floor(position) - 1.0;
  let t = position - floor(position);
  (*weights)[0] = far(t + 1.0);
  (*weights)[1] = near(t);
  (*weights)[2] = near(1.0 - t);
  (*weights)[3] = far(2.0 - t);
  #else
  let first = floor(position);
  let t = position - first;
  (*weights)[0] = 1.0 - t;
  (*weights)[1] = t;
  #end
  #end
  for (var i = 0u; i < ${n_places}u; i++) {
    var wanted = first + f32(i);
    if (!(wanted >= 0.0 && wanted < n)) {
      #if is_moved
      #if is_reflection
      wanted = reflected(wanted, low, high);
      #end
      #else
      (*at)[i] = NONE;
      continue;
      #end
    }
    (*at)[i] = u32(clamp(wanted, 0.0, n - 1.0));
  }
}
