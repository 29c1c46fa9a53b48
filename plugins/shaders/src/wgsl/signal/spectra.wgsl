// 64 bins of some signals' spectra: samples come into the workgroup's memory piece by piece, four signals' in a vector.
//
// buffers: x, roots: vec2<f32>, y, window
// params: length, signals, samples, bins, from_per, from_outer, from_inner, from_step, to_per, to_outer, to_inner, to_step, factor: f32
// $fours: 4, $is_chirp: flag, $is_real: flag, $is_half: flag, $has_im: flag, $has_window: flag, $gives_im: flag
var<workgroup> res: array<vec4<f32>, ${fours}u * 64u>;
#if has_im
var<workgroup> ims: array<vec4<f32>, ${fours}u * 64u>;
#end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let bin = id.x * 64u + thread;
  // Threads beyond the last bin bring samples, too.
  let pace = select(0u, bin, bin < p.bins);
  #if is_chirp
  var place = pace;
  #else
  var place = 0u;
  #end
  // Sums are variables of their own, for what is indexed by a loop may not stay in registers.
  #for f in fours
  var sums_re$f = vec4<f32>();
  var sums_im$f = vec4<f32>();
  #end
  for (var first = 0u; first < p.length; first += 64u) {
    let j = first + thread;
    var weight = 1.0;
    #if has_window
    if (j < p.length) { weight = window[j]; }
    #end
    for (var four = 0u; four < ${fours}u; four++) {
      var re: vec4<f32>;
      var im: vec4<f32>;
      var v: vec2<f32>;
      #for i in 4
      #if is_chirp
      v = less(sample((id.y * ${fours}u + four) * 4u + ${i}u, j), roots[min(j, p.length - 1u)]);
      #else
      v = sample((id.y * ${fours}u + four) * 4u + ${i}u, j);
      #end
      re[$i] = v.x;
      im[$i] = v.y;
      #end
      res[thread * ${fours}u + four] = re * weight;
      #if has_im
      ims[thread * ${fours}u + four] = im * weight;
      #end
    }
    workgroupBarrier();
    // Sums of pieces are added up: long chains would lose more.
    #for f in fours
    var part_re$f = vec4<f32>();
    var part_im$f = vec4<f32>();
    #end
    for (var k = 0u; k < min(64u, p.length - first); k++) {
      // Roots are read once for all signals of a workgroup.
      let root = roots[place];
      #if is_chirp
      // Of the distance, which falls to 0 at the bin itself and then rises.
      place = select(place - 1u, place + 1u, first + k >= pace);
      #else
      place += pace;
      place -= select(0u, p.length, place >= p.length);
      #end
      #for f in fours
      let re$f = res[k * ${fours}u + ${f}u];
      #if has_im
      let im$f = ims[k * ${fours}u + ${f}u];
      part_re$f += root.x * re$f - root.y * im$f;
      part_im$f += root.x * im$f + root.y * re$f;
      #else
      part_re$f = fma(vec4<f32>(root.x), re$f, part_re$f);
      part_im$f = fma(vec4<f32>(root.y), re$f, part_im$f);
      #end
      #end
    }
    #for f in fours
    sums_re$f += part_re$f;
    sums_im$f += part_im$f;
    #end
    workgroupBarrier();
  }
  #for f in fours
  #for i in 4
  write((id.y * ${fours}u + ${f}u) * 4u + ${i}u, bin, vec2<f32>(sums_re$f[$i], sums_im$f[$i]));
  #end
  #end
}

fn write(signal: u32, bin: u32, found: vec2<f32>) {
  var sum = found;
  if (signal >= p.signals || bin >= p.bins) { return; }
  #if is_chirp
  sum = less(sum, roots[bin]);
  #end
  let at = signal / p.to_per * p.to_outer + signal % p.to_per * p.to_inner + bin * p.to_step;
  y[at] = sum.x * p.factor;
  #if gives_im
  y[at + 1u] = sum.y * p.factor;
  #end
}

fn sample(of_four: u32, j: u32) -> vec2<f32> {
  let signal = min(of_four, p.signals - 1u);
  let begin = signal / p.from_per * p.from_outer + signal % p.from_per * p.from_inner;
  #if is_half
  let is_there = j <= p.length / 2u;
  let place = select(p.length - j, j, is_there);
  if (place >= p.samples) { return vec2<f32>(); }
  let at = begin + place * p.from_step;
  return vec2<f32>(x[at], select(-x[at + 1u], x[at + 1u], is_there));
  #else
  if (j >= p.samples) { return vec2<f32>(); }
  #if is_real
  return vec2<f32>(x[begin + j * p.from_step], 0.0);
  #else
  let at = begin + j * p.from_step;
  return vec2<f32>(x[at], x[at + 1u]);
  #end
  #end
}

// A product with the conjugate.
fn less(v: vec2<f32>, root: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(v.x * root.x + v.y * root.y, v.y * root.x - v.x * root.y);
}
