//! Products of matrices: what MatMul, Gemm and convolutions have in common.
//!
//! `Y[row][col] = finish(sum_k A(row, k) * B(k, col))`, for each of a batch. A and B are whatever their [`Side`] loads:
//! matrices in either order, the patches of an image, integers less their zero points. Three shaders:
//!
//! - **tiled**: a workgroup makes a tile of the result from tiles of A and B in its memory, a thread 4 by 4 elements of it
//!   or 8 by 8;
//! - **split**: where tiles would be few and sums long, several workgroups make parts of one sum, which are then added;
//! - **skinny**: with a few rows alone there is nothing to share, so threads go along columns and parts of the sum.

use super::epilogue::{Added, Epilogue};
use super::subgroups;
use super::walk::Walk;
use crate::step::{Body, Build, Call, Convolution, Gemm, Matrix, Param, Slot, Step, turns};
use crate::target::Target;
use devbay_plugin_api::sdk::*;

/// How one operand is loaded: four neighbouring rows of A, or columns of B, for one k.
///
/// In the texts `#` stands for a number that tells the loads of a thread apart, `FIRST` and `BASE` for expressions.
pub struct Side {
    /// Whether neighbouring threads load neighbouring k, and not rows or columns.
    pub k_fast: bool,
    /// Statements before the loop over k: of `FIRST`, the first of the four, and `BASE`, where the operand of this
    /// product of the batch begins; both u32.
    pub hoisted: String,
    /// Statements that set `v`, a vector of four, for `k` where that is below the end.
    pub load: String,
}

/// The number type of sums, and the type of the result's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Types {
    /// `f32` or `i32`.
    pub sum: &'static str,
    /// `f32`, `f16` or `i32`.
    pub element: &'static str,
}

/// A product, or a batch of them.
pub struct Product {
    /// The op.
    pub name: &'static str,
    /// Types of its numbers.
    pub types: Types,
    /// Over the products: where A, B and the addend begin.
    pub batch: Walk,
    /// Products.
    pub n_batch: u64,
    /// Rows of A.
    pub rows: u64,
    /// Columns of B.
    pub cols: u64,
    /// Terms of a sum.
    pub k: u64,
    /// Names, types and slots of what the sides load from.
    pub buffers: Vec<(&'static str, &'static str, Slot)>,
    /// Parameters of the sides.
    pub params: Vec<(String, Param)>,
    /// Functions of the sides.
    pub functions: String,
    /// A.
    pub left: Side,
    /// B.
    pub right: Side,
    /// Where both sides are matrices as they are stored, the first two of the buffers: whether each is turned.
    pub turned: Option<[bool; 2]>,
    /// Whether the result is bound as vectors of four columns.
    pub vectors: bool,
    /// The convolution that it is, where a library may do it.
    pub convolution: Option<Convolution>,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
    /// The result.
    pub output: Slot,
}

/// Extents of a tile, and how many times four rows and columns a thread has.
#[derive(Clone, Copy)]
struct Tile {
    rows: u64,
    cols: u64,
    k: u64,
    row_fours: u64,
    col_fours: u64,
}

const LARGE: Tile = Tile { rows: 128, cols: 128, k: 8, row_fours: 2, col_fours: 2 };
const BROAD: Tile = Tile { rows: 64, cols: 128, k: 8, row_fours: 2, col_fours: 2 };
const MEDIUM: Tile = Tile { rows: 64, cols: 64, k: 16, row_fours: 1, col_fours: 1 };
const WIDE: Tile = Tile { rows: 32, cols: 128, k: 16, row_fours: 1, col_fours: 2 };
const SMALL: Tile = Tile { rows: 32, cols: 32, k: 16, row_fours: 1, col_fours: 1 };

/// A thread's loads and stores are not guarded: they are all of a tile's.
const _: () = {
    let tiles = [LARGE, BROAD, MEDIUM, WIDE, SMALL];
    let mut i = 0;
    while i < tiles.len() {
        let [down, across] = tiles[i].threads();
        assert!((tiles[i].rows / 4 * tiles[i].k).is_multiple_of(down * across));
        assert!((tiles[i].cols / 4 * tiles[i].k).is_multiple_of(down * across));
        i += 1;
    }
};

/// Workgroups that keep a device busy, and a program on the processor.
const GROUPS_WANTED: u64 = 128;
const GROUPS_WANTED_BY_CPU: u64 = 4;

/// Terms of a part of a sum, at least, and parts, at most.
const SPLIT_TERMS: u64 = 256;
const SPLITS_MAX: u64 = 16;
/// Parts, at most, where a thread cannot make as many terms as there would be.
const SPLITS_MAX_FORCED: u64 = 64;

impl Tile {
    /// Threads along rows and columns.
    const fn threads(self) -> [u64; 2] {
        [self.rows / (4 * self.row_fours), self.cols / (4 * self.col_fours)]
    }

    fn count(self, product: &Product) -> u64 {
        product.rows.div_ceil(self.rows) * product.cols.div_ceil(self.cols) * product.n_batch
    }

    /// The largest one of which there are enough to keep a device busy with.
    fn of(product: &Product, groups_wanted: u64) -> Self {
        if product.rows <= 32 {
            return if product.cols >= 128 && WIDE.count(product) * 2 >= groups_wanted {
                WIDE
            } else {
                SMALL
            };
        }
        if product.rows >= 96 && LARGE.count(product) >= groups_wanted {
            return LARGE;
        }
        if product.rows > 32 && product.cols >= 128 && BROAD.count(product) >= groups_wanted {
            return BROAD;
        }
        if product.cols > 32 && MEDIUM.count(product) * 2 >= groups_wanted { MEDIUM } else { SMALL }
    }
}

/// A u32 parameter.
///
/// # Errors
/// Unsupported for what has no room in it.
pub fn u32_param(name: &str, value: u64) -> Result<(String, Param)> {
    let value = u32::try_from(value).map_err(|_| Error::unsupported(format!("{name} of {value}")))?;
    Ok((name.to_owned(), Param::U32(value)))
}

/// A matrix of floats as a side: `extent` names the parameter of how many rows or columns it has. It is stored with its
/// k inside (`k_fast`), or outside; then it may be bound as vectors of four.
pub fn matrix(buffer: &str, extent: &str, k_fast: bool, vectors: bool) -> Side {
    let ends =
        format!("min(vec4<u32>(FIRST, FIRST + 1u, FIRST + 2u, FIRST + 3u), vec4<u32>(p.{extent} - 1u))");
    // Beyond the end the last one is loaded again: what comes of it is not stored.
    let (hoisted, load) = if k_fast {
        let load = |lane| format!("f32({buffer}[{buffer}_at#.{lane} + k])");
        (
            format!("let {buffer}_at# = {ends} * p.k + BASE;\n"),
            format!("v = vec4<f32>({}, {}, {}, {});\n", load("x"), load("y"), load("z"), load("w")),
        )
    } else if vectors {
        (
            format!("let {buffer}_at# = (BASE + min(FIRST, p.{extent} - 4u)) >> 2u;\n"),
            format!("v = vec4<f32>({buffer}[{buffer}_at# + k * (p.{extent} >> 2u)]);\n"),
        )
    } else {
        let load = |lane| format!("f32({buffer}[at.{lane}])");
        (
            format!("let {buffer}_at# = {ends} + BASE;\n"),
            format!(
                "let at = {buffer}_at# + k * p.{extent};\nv = vec4<f32>({}, {}, {}, {});\n",
                load("x"),
                load("y"),
                load("z"),
                load("w")
            ),
        )
    };
    Side { k_fast, hoisted, load }
}

/// Names a vector of four of a type of elements.
pub fn vector_of(element: &'static str) -> &'static str {
    match element {
        "f16" => "vec4<f16>",
        "i32" => "vec4<i32>",
        _ => "vec4<f32>",
    }
}

impl Product {
    /// Adds its steps.
    ///
    /// # Errors
    /// Unsupported beyond what the device can count; what compiling gives.
    pub fn add(self, build: &mut Build, request: &PrepareRequest<'_, Target>) -> Result<()> {
        let total = self.rows * self.cols * self.n_batch;
        if total == 0 {
            return Ok(());
        }
        if self.k == 0 {
            return self.add_sums(build, None);
        }
        if self.add_convolution(build)? || self.add_gemm(build, request.numerics)? {
            return Ok(());
        }
        let is_cpu = request.device.abilities.is_software;
        let groups_wanted = if is_cpu { GROUPS_WANTED_BY_CPU } else { GROUPS_WANTED };
        let tile = Tile::of(&self, groups_wanted);
        let wanted = (groups_wanted / tile.count(&self)).min(self.k / SPLIT_TERMS).clamp(1, SPLITS_MAX);
        // A sum that is too long for one thread's loops is cut, too.
        let fits = |splits: &u64| self.turns(tile, *splits) <= build.turns_max();
        let splits = (wanted..=SPLITS_MAX_FORCED).find(fits).unwrap_or(wanted);
        u32_param("elements of parts", total.saturating_mul(splits))?;
        let bytes = total.saturating_mul(4 * splits);
        if splits > wanted && bytes > build.abilities().binding_max {
            return Err(Error::unsupported(format!("parts of sums of {bytes} bytes")));
        }
        if splits == 1 {
            return self.add_tiles(build, tile, is_cpu, None);
        }
        let parts = build.scratch(total * 4 * splits);
        self.add_tiles(build, tile, is_cpu, Some((parts.clone(), splits)))?;
        self.add_sums(build, Some((parts, splits)))
    }

    /// Adds it as a convolution by a library, and what that does not do behind it; false if there is none that does it.
    fn add_convolution(&self, build: &mut Build) -> Result<bool> {
        let Some(mut convolution) = self.convolution.clone() else { return Ok(false) };
        let epilogue = &self.epilogue;
        convolution.rest = epilogue.in_convolution();
        let is_whole = convolution.rest.is_some() || epilogue.is_nothing();
        // What follows reads the sums, which then are to have their own type.
        if !is_whole && self.types.element != "f32" {
            return Ok(false);
        }
        let call = Call::Convolution(convolution);
        let Some(planned) = build.plan(&call) else { return Ok(false) };
        build.add_call(call, planned);
        if !is_whole {
            self.add_sums(build, Some((self.output.clone(), 1)))?;
        }
        Ok(true)
    }

    /// Adds it as products by a library, and what that does not do behind it; false if there is none that multiplies these.
    fn add_gemm(&self, build: &mut Build, numerics: u64) -> Result<bool> {
        let (Some([a_turned, b_turned]), Some(strides)) = (self.turned, self.batch.even_strides()) else {
            return Ok(false);
        };
        let [(_, _, a), (_, _, b), ..] = &self.buffers[..] else { return Ok(false) };
        let Types { sum: "f32", element } = self.types else { return Ok(false) };
        let side = |slot: &Slot, is_turned, stride: usize| Matrix {
            slot: slot.clone(),
            is_turned,
            stride: strides[stride],
        };
        let mut gemm = Gemm {
            element,
            result: element,
            rows: self.rows,
            cols: self.cols,
            k: self.k,
            n_batch: self.n_batch,
            a: side(a, a_turned, 0),
            b: side(b, b_turned, 1),
            y: self.output.clone(),
            alpha: self.epilogue.alpha,
            bias: None,
            added: None,
            numerics,
        };
        let added = self.epilogue.in_gemm(self.cols, self.n_batch);
        match &added {
            Some(Added::Nothing) => {}
            Some(Added::Bias(slot)) => gemm.bias = Some(slot.clone()),
            Some(Added::Matrix(slot, factor)) => gemm.added = Some((slot.clone(), *factor)),
            // The sums first, in f32.
            None => (gemm.alpha, gemm.result) = (1.0, "f32"),
        }
        let Some(planned) = build.plan(&Call::Gemm(gemm.clone())) else { return Ok(false) };
        if added.is_some() {
            build.add_call(Call::Gemm(gemm), planned);
            return Ok(true);
        }
        // Into the result itself where it has their type: each element is then read and written once.
        if element != "f32" {
            gemm.y = build.scratch(4 * self.rows * self.cols * self.n_batch);
        }
        let sums = gemm.y.clone();
        build.add_call(Call::Gemm(gemm), planned);
        self.add_sums(build, Some((sums, 1)))?;
        Ok(true)
    }

    /// Terms of a part of a sum.
    fn terms(&self, tile: Tile, splits: u64) -> u64 {
        self.k.div_ceil(splits).next_multiple_of(tile.k)
    }

    /// Parts of sums that a grid has behind each other. A batch may be longer; the shader loops.
    fn depth(&self, splits: u64) -> u64 {
        self.n_batch.saturating_mul(splits).min(u64::from(GRID_DEPTH))
    }

    /// Turns of loops of a thread of the tiled shader.
    fn turns(&self, tile: Tile, splits: u64) -> u64 {
        // The last turn over k multiplies what the one before it has loaded.
        let of_sums = turns(self.terms(tile, splits) / tile.k + 1, turns(tile.k, 0));
        let of_stores = turns(4 * tile.row_fours * tile.col_fours, 0);
        let n_sums = self.n_batch.saturating_mul(splits).div_ceil(self.depth(splits));
        turns(n_sums, of_sums.saturating_add(of_stores))
    }

    fn params_of_result(&self) -> Result<Vec<(String, Param)>> {
        let mut params = vec![
            u32_param("rows", self.rows)?,
            u32_param("cols", self.cols)?,
            u32_param("k", self.k)?,
            u32_param("n_batch", self.n_batch)?,
        ];
        u32_param("elements", self.rows * self.cols * self.n_batch)?;
        params.extend(self.batch.params()?);
        Ok(params)
    }

    /// The result from parts of sums, or from sums of nothing.
    fn add_sums(&self, build: &mut Build, parts: Option<(Slot, u64)>) -> Result<()> {
        let Types { sum, element } = self.types;
        let mut buffers = self.epilogue.buffers(element);
        buffers.push(("y", element, self.output.clone()));
        let mut params = self.params_of_result()?;
        params.extend(self.epilogue.params());
        let total = self.rows * self.cols * self.n_batch;
        params.push(u32_param("n", total)?);
        let (mut adds, mut of_adds) = (String::new(), 0);
        if let Some((slot, splits)) = parts {
            buffers.push(("parts", sum, slot));
            params.push(u32_param("splits", splits)?);
            of_adds = turns(splits, 0);
            adds.push_str("for (var s = 0u; s < p.splits; s++) { sum += parts[s * p.n + i]; }\n");
        }
        let code = self.batch.code();
        build.add(Step {
            name: self.name,
            buffers,
            params,
            turns: of_adds,
            body: Body::Items {
                n: total,
                functions: &self.epilogue.functions(sum),
                each: &format!(
                    "let col = i % p.cols;\nlet line = i / p.cols;\nlet row = line % p.rows;\nlet e = line / p.rows;\n\
                     {code}\nvar sum = {sum}();\n{adds}y[i] = {element}(finish(sum, at2, row, col, i));\n"
                ),
            },
        })
    }

    fn add_tiles(
        &self,
        build: &mut Build,
        tile: Tile,
        is_cpu: bool,
        parts: Option<(Slot, u64)>,
    ) -> Result<()> {
        let splits = parts.as_ref().map_or(1, |(_, splits)| *splits);
        let k_per = self.terms(tile, splits);
        let mut params = self.params_of_result()?;
        params.extend([u32_param("splits", splits)?, u32_param("k_per", k_per)?]);
        params.extend(self.params.iter().cloned());
        let mut buffers = self.buffers.clone();
        let Types { sum, element } = self.types;
        let is_part = parts.is_some();
        let (y_type, functions) = match &parts {
            Some(_) => (sum, self.functions.clone()),
            None => {
                buffers.extend(self.epilogue.buffers(element));
                params.extend(self.epilogue.params());
                (element, format!("{}{}", self.functions, self.epilogue.functions(sum)))
            }
        };
        let bound = if self.vectors { vector_of(y_type) } else { y_type };
        buffers.push(("y", bound, parts.map_or(self.output.clone(), |(slot, _)| slot)));
        // A driver unrolls what it can count. On the processor that is most of the time that compiling takes, and is
        // felt in large tiles alone.
        let steps = match is_cpu && tile.row_fours * tile.col_fours < 4 {
            true => {
                params.push(u32_param("k_step", tile.k)?);
                "p.k_step".to_owned()
            }
            false => format!("{}u", tile.k),
        };
        let module = self.tiled(tile, y_type, is_part, &functions, &steps);
        let count = |n: u64| u32::try_from(n).map_err(|_| Error::unsupported(format!("{n} tiles")));
        let depth = self.depth(splits);
        let groups =
            [count(self.cols.div_ceil(tile.cols))?, count(self.rows.div_ceil(tile.rows))?, count(depth)?];
        let turns = self.turns(tile, splits);
        build.add(Step {
            name: self.name,
            buffers,
            params,
            turns,
            body: Body::Groups { groups, module: &module },
        })
    }

    /// The tiled shader.
    fn tiled(&self, tile: Tile, y_type: &str, is_part: bool, functions: &str, steps: &str) -> String {
        let sum = self.types.sum;
        let [ty, tx] = tile.threads();
        let threads = ty * tx;
        // A's rows are padded so that threads that store neighbouring k do not meet in a bank.
        let (a_line, b_line) = (tile.rows / 4 + 1, tile.cols / 4 + 1);
        let mut text = format!(
            "{functions}\nvar<workgroup> a_tile: array<vec4<{sum}>, {}>;\nvar<workgroup> b_tile: array<vec4<{sum}>, {}>;\n",
            tile.k * a_line,
            tile.k * b_line
        );
        text.push_str(&self.store(y_type, is_part));
        text.push_str(&format!(
            "@compute @workgroup_size({threads})\nfn main(@builtin(workgroup_id) group: vec3<u32>, \
             @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {{\n\
             let tx = t % {tx}u;\nlet ty = t / {tx}u;\nlet row0 = group.y * {}u;\nlet col0 = group.x * {}u;\n\
             for (var z = group.z; z < p.n_batch * p.splits; z += groups.z) {{\n\
             let e = z / p.splits;\nlet part = z % p.splits;\nlet k_begin = part * p.k_per;\n\
             let k_end = min(k_begin + p.k_per, p.k);\n{}\n",
            tile.rows,
            tile.cols,
            self.batch.code()
        ));
        // What each thread loads: where it stores it, and the vectors in between.
        let mut loads = String::new();
        let mut stores = String::new();
        let sides = [
            ("a", &self.left, "row0", "at0", tile.rows / 4, a_line),
            ("b", &self.right, "col0", "at1", tile.cols / 4, b_line),
        ];
        for (name, side, origin, base, fours, line) in sides {
            let n_loads = (fours * tile.k).div_ceil(threads);
            for l in 0..n_loads {
                let at = format!("(t + {}u)", l * threads);
                let (k, four) = match side.k_fast {
                    true => (format!("{at} % {}u", tile.k), format!("{at} / {}u", tile.k)),
                    false => (format!("{at} / {fours}u"), format!("{at} % {fours}u")),
                };
                let id = format!("{name}{l}");
                text.push_str(&format!("let {id}_k = {k};\nlet {id}_four = {four};\n"));
                let hoisted = side.hoisted.replace('#', &l.to_string());
                text.push_str(
                    &hoisted.replace("FIRST", &format!("({origin} + {id}_four * 4u)")).replace("BASE", base),
                );
                text.push_str(&format!("var {id} = vec4<{sum}>();\n"));
                let load = side.load.replace('#', &l.to_string()).replace("BASE", base);
                loads.push_str(&format!(
                    "{{\nlet k = k0 + {id}_k;\nvar v = vec4<{sum}>();\nif (k < k_end) {{\n{load}}}\n{id} = v;\n}}\n"
                ));
                stores.push_str(&format!("{name}_tile[{id}_k * {line}u + {id}_four] = {id};\n"));
            }
        }
        let (rows, cols) = (tile.row_fours, tile.col_fours);
        for r in 0..4 * rows {
            for c in 0..cols {
                text.push_str(&format!("var sum{r}_{c} = vec4<{sum}>();\n"));
            }
        }
        // A tile is on its way while the one before it is multiplied.
        text.push_str(&format!(
            "for (var k0 = k_begin; ; k0 += {0}u) {{\nif (k0 < k_end) {{\n{loads}}}\nif (k0 > k_begin) {{\n\
             for (var kk = 0u; kk < {steps}; kk++) {{\n",
            tile.k
        ));
        for i in 0..rows {
            text.push_str(&format!("let x{i} = a_tile[kk * {a_line}u + ty + {}u];\n", i * ty));
        }
        for i in 0..cols {
            text.push_str(&format!("let w{i} = b_tile[kk * {b_line}u + tx + {}u];\n", i * tx));
        }
        for r in 0..4 * rows {
            for c in 0..cols {
                let lane = ["x", "y", "z", "w"][r as usize % 4];
                text.push_str(&format!("sum{r}_{c} += x{}.{lane} * w{c};\n", r / 4));
            }
        }
        text.push_str(&format!(
            "}}\n}}\nif (k0 >= k_end) {{ break; }}\nworkgroupBarrier();\n{stores}workgroupBarrier();\n}}\n"
        ));
        // A loop, and not a copy of what follows the sums for each of them.
        let n = 4 * rows * cols;
        let sums: Vec<_> = (0..n).map(|i| format!("sum{}_{}", i / cols, i % cols)).collect();
        text.push_str(&format!(
            "var sums = array<vec4<{sum}>, {n}>({});\nfor (var i = 0u; i < {n}u; i++) {{\nlet r = i / {cols}u;\n\
             store(e, part, at2, row0 + (ty + r / 4u * {ty}u) * 4u + r % 4u, \
             col0 + (tx + i % {cols}u * {tx}u) * 4u, sums[i]);\n}}\n",
            sums.join(", ")
        ));
        text.push_str("}\n}\n");
        text
    }

    /// WGSL: a function that stores four columns of a row.
    fn store(&self, y_type: &str, is_part: bool) -> String {
        let sum = self.types.sum;
        let value = |lane: usize| {
            let name = ["x", "y", "z", "w"][lane];
            match is_part {
                true => format!("v.{name}"),
                false => format!("{y_type}(finish(v.{name}, addend_base, row, col + {lane}u, at + {lane}u))"),
            }
        };
        let begin = match is_part {
            true => "((part * p.n_batch + e) * p.rows + row) * p.cols + col",
            false => "(e * p.rows + row) * p.cols + col",
        };
        let mut text = format!(
            "fn store(e: u32, part: u32, addend_base: u32, row: u32, col: u32, v: vec4<{sum}>) {{\n\
             if (row >= p.rows || col >= p.cols) {{ return; }}\nlet at = {begin};\n"
        );
        if self.vectors {
            let values: Vec<_> = (0..4).map(value).collect();
            text.push_str(&format!("y[at >> 2u] = vec4<{y_type}>({});\n", values.join(", ")));
        } else {
            for lane in 0..4 {
                let guard = if lane == 0 { String::new() } else { format!("if (col + {lane}u < p.cols) ") };
                text.push_str(&format!("{guard}{{ y[at + {lane}u] = {}; }}\n", value(lane)));
            }
        }
        text.push_str("}\n");
        text
    }
}

/// Products of a batch that a grid has next to each other.
const GRID_DEPTH: u32 = 65535;

/// Rows that the skinny shader takes.
pub const SKINNY_ROWS: u64 = 4;

/// A product of a few rows: `Y[row][col] = finish(sum_k A(row, k) * B(k, col))`, all by their distances.
pub struct Skinny {
    /// The op.
    pub name: &'static str,
    /// `f32` or `f16`.
    pub element: &'static str,
    /// Over the products: where A, B and the addend begin.
    pub batch: Walk,
    /// Products.
    pub n_batch: u64,
    /// Rows, at most [`SKINNY_ROWS`].
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Terms of a sum.
    pub k: u64,
    /// A, and its distances between rows and k.
    pub a: (Slot, u64, u64),
    /// B, and its distances between k and columns.
    pub b: (Slot, u64, u64),
    /// The result, and its distances between rows and columns.
    pub y: (Slot, u64, u64),
    /// What becomes of the sums, with distances of these rows and columns.
    pub epilogue: Epilogue,
}

impl Skinny {
    /// Adds its step.
    ///
    /// # Errors
    /// Unsupported beyond what the device can count; what compiling gives.
    pub fn add(&self, build: &mut Build) -> Result<()> {
        let (rows, element) = (self.rows, self.element);
        // Threads go along what B has next to each other.
        let k_fast = self.b.1 == 1 && self.b.2 != 1;
        let (cols, parts) = if k_fast { (8, 32) } else { (16, 16) };
        let mut params = vec![
            u32_param("n_batch", self.n_batch)?,
            u32_param("cols", self.cols)?,
            u32_param("k", self.k)?,
            u32_param("a_row", self.a.1)?,
            u32_param("a_k", self.a.2)?,
            u32_param("b_k", self.b.1)?,
            u32_param("b_col", self.b.2)?,
            u32_param("y_row", self.y.1)?,
            u32_param("y_col", self.y.2)?,
            u32_param("y_all", self.rows * self.cols)?,
        ];
        u32_param("elements", self.rows * self.cols * self.n_batch)?;
        params.extend(self.batch.params()?);
        params.extend(self.epilogue.params());
        let mut buffers = vec![
            ("a", element, self.a.0.clone()),
            ("b", element, self.b.0.clone()),
            ("y", element, self.y.0.clone()),
        ];
        buffers.extend(self.epilogue.buffers(element));
        let vector = if rows == 1 { "f32".to_owned() } else { format!("vec{rows}<f32>") };
        let loads: Vec<_> =
            (0..rows).map(|row| format!("f32(a[a_at + {row}u * p.a_row + k * p.a_k])")).collect();
        let split = match k_fast {
            true => format!("let part = t % {parts}u;\nlet own = t / {parts}u;\nlet beside = 1u;\n"),
            false => format!("let own = t % {cols}u;\nlet part = t / {cols}u;\nlet beside = {cols}u;\n"),
        };
        let mut stores = String::new();
        for row in 0..rows {
            let value = if rows == 1 { "sum".to_owned() } else { format!("sum[{row}]") };
            stores.push_str(&format!(
                "{{\nlet at = e * p.y_all + {row}u * p.y_row + col * p.y_col;\n\
                 y[at] = {element}(finish({value}, at2, {row}u, col, at));\n}}\n"
            ));
        }
        // Threads of a subgroup that share a column add up what they have without memory; `n_sums` of it are left.
        let subgroup = if k_fast { u64::from(build.abilities().subgroup).min(parts) } else { 1 };
        let n_sums = parts / subgroup;
        let inputs = subgroups::inputs("t", subgroup > 1);
        let mut add_up = subgroups::shuffled(subgroup as u32, "sum", "a + b");
        match n_sums {
            1 => {}
            _ if subgroup > 1 => add_up.push_str(&format!(
                "if (part % {subgroup}u == 0u) {{ sums[t / {subgroup}u] = sum; }}\nworkgroupBarrier();\n\
                 if (part == 0u) {{\n\
                 for (var j = 1u; j < {n_sums}u; j++) {{ sum += sums[own * {n_sums}u + j]; }}\n}}\n"
            )),
            _ => add_up.push_str(&format!(
                "sums[t] = sum;\nworkgroupBarrier();\n\
                 for (var half = {}u; half > 0u; half >>= 1u) {{\n\
                 if (part < half) {{ sums[t] += sums[t + half * beside]; }}\nworkgroupBarrier();\n}}\n\
                 sum = sums[t];\n",
                parts / 2
            )),
        }
        // The next sums are written where these were read.
        let (memory, barrier) = match n_sums {
            1 => (String::new(), ""),
            _ => (format!("var<workgroup> sums: array<{vector}, 256>;\n"), "workgroupBarrier();\n"),
        };
        let module = format!(
            "{}\nfn term(a_at: u32, b_at: u32, k: u32) -> {vector} {{\n\
             return {vector}({}) * f32(b[b_at + k * p.b_k]);\n}}\n{memory}\
             @compute @workgroup_size(256)\nfn main(@builtin(workgroup_id) group: vec3<u32>, \
             @builtin(num_workgroups) groups: vec3<u32>, {}) {{\n{}{split}\
             let col = group.x * {cols}u + own;\nlet near = min(col, p.cols - 1u);\n\
             for (var e = group.z; e < p.n_batch; e += groups.z) {{\n{}\n\
             var sum = {vector}();\n\
             let b_at = at1 + near * p.b_col;\nvar k = part;\n\
             // Four loads are under way at a time.\n\
             for (; k + {}u < p.k; k += {}u) {{\n\
             sum += term(at0, b_at, k) + term(at0, b_at, k + {parts}u) \
             + term(at0, b_at, k + {}u) + term(at0, b_at, k + {}u);\n}}\n\
             for (; k < p.k; k += {parts}u) {{ sum += term(at0, b_at, k); }}\n\
             {add_up}if (part == 0u && col < p.cols) {{\n{stores}}}\n{barrier}}}\n}}\n",
            self.epilogue.functions("f32"),
            loads.join(", "),
            inputs.arguments,
            inputs.begin,
            self.batch.code(),
            3 * parts,
            4 * parts,
            2 * parts,
            3 * parts,
        );
        let groups = u32::try_from(self.cols.div_ceil(cols));
        let groups = groups.map_err(|_| Error::unsupported(format!("{} columns", self.cols)))?;
        let depth = self.n_batch.min(u64::from(GRID_DEPTH)) as u32;
        let of_sum =
            turns(self.k / (4 * parts), 0) + turns(4, 0) + turns(n_sums.max(u64::from(parts.ilog2())), 0);
        build.add(Step {
            name: self.name,
            buffers,
            params,
            turns: turns(self.n_batch.div_ceil(u64::from(depth.max(1))), of_sum),
            body: Body::Groups { groups: [groups, 1, depth], module: &module },
        })
    }
}
