// Loads a vector of a tile.
//
// with: var<private> a0: vec4<f32>;
// over: k0, k_end, a0_k
// $id: a0, $number: f32, $load: v = vec4<f32>(f32(k));
{
  let k = k0 + ${id}_k;
  var v = vec4<$number>();
  if (k < k_end) {
    $load
  }
  $id = v;
}
