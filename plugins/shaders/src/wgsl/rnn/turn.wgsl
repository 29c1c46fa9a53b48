// The recurrent weights in fours, so that threads beside each other read what is beside each other.
//
// buffers: x, y: vec4<f32>
// params: width, hidden, fours
// over: i
let row = i % p.width;
let k = i / p.width % p.fours * 4u;
let at = (i / (p.width * p.fours) * p.width + row) * p.hidden + k;
var v = vec4<f32>();
for (var j = 0u; j < min(4u, p.hidden - k); j++) { v[j] = x[at + j]; }
y[i] = v;
