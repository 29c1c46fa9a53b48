// Reverses the first elements of sequences, as many as each has. A length that is none fails the stream, and is cut to one.
//
// buffers: x: u32, lengths: vec2<u32>
// params: run, times, batches
// with: var<private> v: u32;
// over: e
// $time_is_first: flag, $load: x[at]
let row = e / p.run;
#if time_is_first
var time = row / p.batches;
let batch = row % p.batches;
#else
var time = row % p.times;
let batch = row / p.times;
#end
let length = u32(clamp(bitcast<i32>(lengths[batch].x), 0, i32(p.times)));
if (time < length) { time = length - 1u - time; }
#if time_is_first
let at = (time * p.batches + batch) * p.run + e % p.run;
#else
let at = (batch * p.times + time) * p.run + e % p.run;
#end
v = $load;
