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
use crate::step::{Body, Build, Call, Convolution, Gemm, Matrix, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::{Fill, fill, wgsl};
use devbay_plugin_api::sdk::*;

/// Values of a side's templates that the product fills in.
pub const L: &str = "${l}";
/// As above.
pub const FIRST: &str = "${first}";
/// As above.
pub const BASE: &str = "${base}";

/// Loads of one operand: four neighbouring rows of A, or columns of B, for one k.
///
/// The texts are templates of which `l`, a number that tells the loads of a thread apart, `first` and `base` are still to
/// be filled in ([`L`], [`FIRST`], [`BASE`]).
pub struct Side {
    /// True if neighbouring threads load neighbouring k, and not rows or columns.
    pub k_fast: bool,
    /// Statements before the loop over k: of `first`, the first of the four, and `base`, where the operand of this
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
    /// True if the result is bound as vectors of four columns.
    pub vectors: bool,
    /// The convolution that it is, where a library may do it.
    pub convolution: Option<Convolution>,
    /// Steps on the sums.
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
    // Beyond the end the last one is loaded again: its results are not stored.
    let (l, first, base) = (L, FIRST, BASE);
    let hoisted = wgsl!("product/matrix_place.wgsl", buffer, extent, l, first, base, k_fast, vectors);
    let load = match vectors && !k_fast {
        true => format!("v = vec4<f32>({buffer}[{buffer}_at{l} + k * (p.{extent} >> 2u)]);\n"),
        false => wgsl!("product/matrix_load.wgsl", buffer, extent, l, k_fast),
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
        // Later steps read the sums, which then must have their own type.
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
        // The last turn over k multiplies the vectors that the one before it has loaded.
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
        let (has_parts, mut of_adds) = (parts.is_some(), 0);
        if let Some((slot, splits)) = parts {
            buffers.push(("parts", sum, slot));
            params.push(u32_param("splits", splits)?);
            of_adds = turns(splits, 0);
        }
        let walk = self.batch.code();
        let each = wgsl!("product/sums.wgsl", walk, number = sum, element, has_parts);
        build.add(ShaderStep {
            name: self.name,
            buffers,
            params,
            turns: of_adds,
            body: Body::Items { n: total, functions: &self.epilogue.functions(sum), each: &each },
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
        // A driver unrolls loops whose turns it can count. On the processor that is most of the time that compiling
        // takes, and is felt in large tiles alone.
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
        build.add(ShaderStep {
            name: self.name,
            buffers,
            params,
            turns,
            body: Body::Groups { groups, module: &module },
        })
    }

    /// The tiled shader.
    fn tiled(&self, tile: Tile, y_type: &str, is_part: bool, functions: &str, steps: &str) -> String {
        let number = self.types.sum;
        let [ty, tx] = tile.threads();
        let threads = ty * tx;
        // A's rows are padded so that threads that store neighbouring k do not meet in a bank.
        let (a_line, b_line) = (tile.rows / 4 + 1, tile.cols / 4 + 1);
        let store = match self.vectors {
            true => wgsl!("product/store_vector.wgsl", number, element = y_type, is_part),
            false => wgsl!("product/store_each.wgsl", number, element = y_type, is_part),
        };
        // Loads of each thread: the places where it stores them, and the vectors in between.
        let (mut places, mut loads, mut stores) = (String::new(), String::new(), String::new());
        let sides = [
            ("a", &self.left, "row0", "at0", tile.rows / 4, a_line),
            ("b", &self.right, "col0", "at1", tile.cols / 4, b_line),
        ];
        for (name, side, origin, base, fours, line) in sides {
            for l in 0..(fours * tile.k).div_ceil(threads) {
                let id = format!("{name}{l}");
                let first = format!("({origin} + {id}_four * 4u)");
                let values = [("l", l.value()), ("first", first.value()), ("base", base.value())];
                let hoisted = fill(&side.hoisted, &values);
                let (at, k_fast) = (format!("(t + {}u)", l * threads), side.k_fast);
                places += &wgsl!("product/place.wgsl", id, at, k_fast, k = tile.k, fours, hoisted, number);
                loads += &wgsl!("product/load.wgsl", id, number, load = fill(&side.load, &values));
                stores += &format!("{name}_tile[{id}_k * {line}u + {id}_four] = {id};\n");
            }
        }
        wgsl!(
            "product/tiled.wgsl",
            functions,
            number,
            a_size = tile.k * a_line,
            b_size = tile.k * b_line,
            store,
            threads,
            tx,
            ty,
            rows = tile.rows,
            cols = tile.cols,
            k = tile.k,
            walk = self.batch.code(),
            places,
            loads,
            stores,
            steps,
            a_line,
            b_line,
            row_fours = tile.row_fours,
            col_fours = tile.col_fours,
            n_sums = 4 * tile.row_fours * tile.col_fours,
        )
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
    /// Steps on the sums, with distances of these rows and columns.
    pub epilogue: Epilogue,
}

impl Skinny {
    /// Adds its step.
    ///
    /// # Errors
    /// Unsupported beyond what the device can count; what compiling gives.
    pub fn add(&self, build: &mut Build) -> Result<()> {
        let (rows, element) = (self.rows, self.element);
        // Threads go along the dimension in which B's elements are next to each other.
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
        // Threads of a subgroup that share a column add up their sums without memory; `n_sums` of them are left.
        let subgroup = if k_fast { u64::from(build.abilities().subgroup).min(parts) } else { 1 };
        let n_sums = parts / subgroup;
        let inputs = subgroups::inputs("t", subgroup > 1);
        let module = wgsl!(
            "product/skinny.wgsl",
            functions = self.epilogue.functions("f32"),
            vector,
            element,
            rows,
            is_row = rows == 1,
            arguments = inputs.arguments,
            begin = inputs.begin,
            k_fast,
            cols,
            parts,
            shuffled = subgroups::shuffled(subgroup as u32, "sum", "a + b"),
            is_shuffled = subgroup > 1,
            is_summed = n_sums > 1,
            subgroup,
            n_sums,
            walk = self.batch.code(),
        );
        let groups = u32::try_from(self.cols.div_ceil(cols));
        let groups = groups.map_err(|_| Error::unsupported(format!("{} columns", self.cols)))?;
        let depth = self.n_batch.min(u64::from(GRID_DEPTH)) as u32;
        let of_sum =
            turns(self.k / (4 * parts), 0) + turns(4, 0) + turns(n_sums.max(u64::from(parts.ilog2())), 0);
        build.add(ShaderStep {
            name: self.name,
            buffers,
            params,
            turns: turns(self.n_batch.div_ceil(u64::from(depth.max(1))), of_sum),
            body: Body::Groups { groups: [groups, 1, depth], module: &module },
        })
    }
}
