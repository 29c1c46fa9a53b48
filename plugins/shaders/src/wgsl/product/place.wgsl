// Where a thread loads a vector of a tile, and stores it.
//
// over: t
// $id: a0, $at: (t + 64u), $k_fast: flag, $k: 16, $fours: 16, $hoisted: let a_at0 = t;, $number: f32
#if k_fast
let ${id}_k = $at % ${k}u;
let ${id}_four = $at / ${k}u;
#else
let ${id}_k = $at / ${fours}u;
let ${id}_four = $at % ${fours}u;
#end
$hoisted
var $id = vec4<$number>();
