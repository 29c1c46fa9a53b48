// An element of a head, turned with the other of its pair by the angle of their position.
//
// buffers: x, cosines, sines, y, positions: vec2<u32>
// params: heads, sequence, size, pairs, table
// over: i
// $is_flat: flag, $has_positions: flag, $is_interleaved: flag
let at = i % p.size;
if (at >= 2u * p.pairs) {
  y[i] = x[i];
  return;
}
#if is_flat
let token = i / p.size / p.heads;
#else
let head = i / p.size / p.sequence;
let token = head / p.heads * p.sequence + i / p.size % p.sequence;
#end
// The pair, whether the element is its second, and how far the other is.
#if is_interleaved
let pair = at / 2u;
let is_second = at % 2u == 1u;
let apart = 1u;
#else
let pair = at % p.pairs;
let is_second = at >= p.pairs;
let apart = p.pairs;
#end
#if has_positions
let angle = min(positions[token].x, p.table - 1u) * p.pairs + pair;
#else
let angle = token * p.pairs + pair;
#end
let c = cosines[angle];
let s = sines[angle];
if (is_second) { y[i] = s * x[i - apart] + c * x[i]; }
else { y[i] = c * x[i] - s * x[i + apart]; }
