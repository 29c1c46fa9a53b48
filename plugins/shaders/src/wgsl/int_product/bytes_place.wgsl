// Where a matrix of bytes has the four neighbouring lines that a load takes, and their zero points.
//
// params: rows, k
// over: base, first
// $buffer: a, $extent: rows, $l: 0, $first: first, $base: base, $step: * p.k, $x: i32(a_lines0.x), $y: 0, $z: 0
// $w: 0
let ${buffer}_lines$l = min(vec4<u32>($first, $first + 1u, $first + 2u, $first + 3u), vec4<u32>(p.$extent - 1u));
let ${buffer}_at$l = ${buffer}_lines$l $step + $base;
let ${buffer}_zero$l = vec4<i32>($x, $y, $z, $w);
