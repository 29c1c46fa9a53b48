// A recurrent layer: a workgroup goes through the steps of one sequence in one direction.
//
// buffers: products, r: vec4<f32>, lengths: i32, h0, c0, peepholes, y, y_h, y_c, kept
// params: first, batch, length, hidden, width, all_width, fours, reverse, x_t, x_b, y_t, y_b, y_d, s_b, s_d, n_state, begin, end
// $functions: fn act0(v: f32) -> f32 { return tanh_f(v); } fn act1(v: f32) -> f32 { return v; } fn act2(v: f32) -> f32 { return v; }
// $gates: var<workgroup> gates: array<f32, 128>;
// $capacity: 32, $threads: 64, $barrier: workgroupBarrier();, $is_apart: flag, $initial_h: h0[state + j]
// $initial_c: c0[state + j], $length: p.length
// $sums: for (var row = thread; row < p.width; row += 64u) { gates[row] = products[from_input + row] * h[row]; }
// $is_lstm: flag, $has_peepholes: flag, $is_coupled: flag, $is_gru: flag, $is_after: flag, $is_reset: flag
// $later_sums: for (var row = thread; row < p.width; row += 64u) { gates[row] = products[from_input + row] * other[row]; }
// $has_y: flag, $has_y_h: flag, $has_y_c: flag
$functions
$gates
var<workgroup> h: array<f32, $capacity>;
var<workgroup> other: array<f32, $capacity>;

@compute @workgroup_size($threads)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let d = p.first + id.x / p.batch;
  let b = id.x % p.batch;
  let state = (d * p.s_d + b * p.s_b) * p.hidden;
  let length = $length;
  let weights = d * p.width * p.fours;
  let of_cell = d * 3u * p.hidden;
  for (var j = thread; j < p.hidden; j += ${threads}u) {
    #if is_apart
    h[j] = kept[state + j];
    other[j] = kept[p.n_state + state + j];
    #else
    h[j] = $initial_h;
    other[j] = $initial_c;
    #end
  }
  if (thread < p.fours * 4u - p.hidden) {
    h[p.hidden + thread] = 0.0;
    other[p.hidden + thread] = 0.0;
  }
  $barrier
  for (var s = p.begin; s < p.end; s++) {
    let is_on = s < length;
    let t = select(s, length - 1u - s, is_on && (d == 1u || p.reverse == 1u));
    let from_input = (t * p.x_t + b * p.x_b) * p.all_width + d * p.width;
    if (is_on) {
      $sums
    }
    $barrier
    #if is_reset
    // The candidate is made of what the reset gate leaves of the state.
    if (is_on) {
      for (var j = thread; j < p.hidden; j += ${threads}u) {
        other[j] = act0(gates[p.hidden + j]) * h[j];
      }
    }
    $barrier
    if (is_on) {
      $later_sums
    }
    $barrier
    #end
    if (is_on) {
      for (var j = thread; j < p.hidden; j += ${threads}u) {
        #if is_lstm
        let before = other[j];
        #if has_peepholes
        let input = act0(gates[j] + peepholes[of_cell + 0u * p.hidden + j] * before);
        #else
        let input = act0(gates[j]);
        #end
        #if is_coupled
        let forget = 1.0 - input;
        #else
        #if has_peepholes
        let forget = act0(gates[2u * p.hidden + j] + peepholes[of_cell + 2u * p.hidden + j] * before);
        #else
        let forget = act0(gates[2u * p.hidden + j]);
        #end
        #end
        let cell = forget * before + input * act1(gates[3u * p.hidden + j]);
        #if has_peepholes
        let output = act0(gates[p.hidden + j] + peepholes[of_cell + 1u * p.hidden + j] * cell);
        #else
        let output = act0(gates[p.hidden + j]);
        #end
        other[j] = cell;
        h[j] = output * act2(cell);
        #else
        #if is_gru
        let update = act0(gates[j]);
        #if is_after
        let reset = act0(gates[p.hidden + j]);
        let candidate = act1(products[from_input + 2u * p.hidden + j] + reset * gates[2u * p.hidden + j]);
        #else
        let candidate = act1(gates[2u * p.hidden + j]);
        #end
        h[j] = candidate + update * (h[j] - candidate);
        #else
        h[j] = act0(gates[j]);
        #end
        #end
      }
    }
    #if has_y
    // A unit's number is written by the thread that has made it.
    for (var j = thread; j < p.hidden; j += ${threads}u) {
      y[((t * p.y_t + b * p.y_b + d * p.y_d) * p.hidden) + j] = select(0.0, h[j], is_on);
    }
    #end
    $barrier
  }
  #if is_apart
  for (var j = thread; j < p.hidden; j += ${threads}u) {
    kept[state + j] = h[j];
    kept[p.n_state + state + j] = other[j];
  }
  #else
  #if has_y_h
  for (var j = thread; j < p.hidden; j += ${threads}u) {
    y_h[state + j] = h[j];
  }
  #end
  #if has_y_c
  for (var j = thread; j < p.hidden; j += ${threads}u) {
    y_c[state + j] = other[j];
  }
  #end
  #end
}
