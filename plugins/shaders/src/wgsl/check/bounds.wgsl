// Compares integer `i` with its bounds. Launches of a stream come one behind the other, so that the first report is that of
// the first op whose data is at fault, and others leave it alone.
//
// buffers: ids: vec2<u32>, status: atomic<u32>
// params: low0x, low0y, high0x, high0y, number0, low1x, low1y, high1x, high1y, number1
// with: fn is_less(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x < b.x; }
// over: i
// $value: ids[i], $last: 1
let value = $value;
var low = vec2<u32>(p.low${last}x, p.low${last}y);
var high = vec2<u32>(p.high${last}x, p.high${last}y);
var number = p.number$last;
#for k in last
if (i % ($last + 1u) == ${k}u) {
  low = vec2<u32>(p.low${k}x, p.low${k}y);
  high = vec2<u32>(p.high${k}x, p.high${k}y);
  number = p.number$k;
}
#end
if (!is_less(value, low) && !is_less(high, value)) { return; }
if (atomicOr(&status[0], 0u) != 0u) { return; }
if (atomicMax(&status[0], number) != 0u) { return; }
atomicMax(&status[1], value.x);
atomicMax(&status[2], value.y);
