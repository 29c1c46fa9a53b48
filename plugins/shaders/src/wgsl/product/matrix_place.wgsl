// Where a matrix has the four neighbouring rows or columns that a load takes.
//
// params: rows, k
// over: base, first
// $buffer: a, $extent: rows, $l: 0, $first: first, $base: base, $k_fast: flag, $vectors: flag
#if k_fast
let ${buffer}_at$l = min(vec4<u32>($first, $first + 1u, $first + 2u, $first + 3u), vec4<u32>(p.$extent - 1u)) * p.k + $base;
#else
#if vectors
let ${buffer}_at$l = ($base + min($first, p.$extent - 4u)) >> 2u;
#else
let ${buffer}_at$l = min(vec4<u32>($first, $first + 1u, $first + 2u, $first + 3u), vec4<u32>(p.$extent - 1u)) + $base;
#end
#end
