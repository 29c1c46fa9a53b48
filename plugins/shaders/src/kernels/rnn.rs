//! RNN, GRU and LSTM.
//!
//! The products of the inputs with their weights do not depend on the state: they are made for all steps at once. Then
//! one workgroup goes through the steps of a sequence in one direction: its threads make the products of the state with
//! the recurrent weights, then the gates and the new state, which stays in the workgroup's memory. Long sequences are cut
//! into several dispatches, for no device lets one run for long; the state is then kept in the workspace.
//!
//! With lengths of sequences, a sequence that has ended keeps its state, and its outputs are 0.

use super::cost;
use super::lines::{LineStep, Lines, Nest, count, div_up, product};
use super::math;
use super::tiles::{self, Product};
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_ops::read::{Activation, Cell, Extents, Recurrent};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const TYPES: &[TypeVar] = &[TypeVar::of(&[F32]), TypeVar::of(&[I32])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("RNN", 14, |request| prepare(request, Cell::Rnn))
        .types(TYPES)
        .cost(|request| cost(request, Cell::Rnn)),
    descriptor("GRU", 14, |request| prepare(request, Cell::Gru))
        .types(TYPES)
        .cost(|request| cost(request, Cell::Gru)),
    descriptor("LSTM", 14, |request| prepare(request, Cell::Lstm))
        .types(TYPES)
        .cost(|request| cost(request, Cell::Lstm)),
];

/// Buffers of a dispatch on every device.
const BUFFERS_MAX: usize = 8;
/// Rows up to which a product is many dot products, and no tiles.
const FEW_ROWS: i64 = 4;
/// Steps from which on recurrent weights are turned round first, so that threads beside each other read what is beside
/// each other.
const MANY_STEPS: i64 = 4;
/// Hidden sizes that a workgroup's memory is made for.
const CAPACITIES: [i64; 5] = [32, 128, 256, 640, 2016];
/// The largest of them with which it has room for the gates, too.
const GATES_MAX: i64 = 640;
/// Turns of loops of a thread in one dispatch, at most: drivers give a device up that does not answer for some seconds.
const TURNS_MAX: u64 = 1 << 22;

fn cost(request: &Request<'_>, cell: Cell) -> Result<Cost> {
    let Extents { length, batch, inputs, directions, hidden, .. } = Extents::of(request, cell)?;
    let products = inputs.saturating_add(hidden).saturating_mul(2).saturating_add(20);
    let flops = product(&[directions, length, batch, cell.gates(), hidden, products]);
    Ok(cost::of(request, flops.max(0) as u64))
}

/// An activation as WGSL over `x`, and the values of its `ALPHA` and `BETA`.
fn written(activation: Activation) -> (&'static str, f32, f32) {
    match activation {
        Activation::Sigmoid => ("sigmoid_f(x)", 0.0, 0.0),
        Activation::Tanh => ("tanh_f(x)", 0.0, 0.0),
        Activation::Relu => ("at_least_f(x, 0.0)", 0.0, 0.0),
        Activation::LeakyRelu(alpha) => ("select(x, ALPHA * x, x < 0.0)", alpha, 0.0),
        Activation::ThresholdedRelu(alpha) => ("select(0.0, x, x > ALPHA)", alpha, 0.0),
        Activation::Elu(alpha) => ("select(x, ALPHA * expm1_f(x), x < 0.0)", alpha, 0.0),
        Activation::HardSigmoid(alpha, beta) => ("unit_f(ALPHA * x + BETA)", alpha, beta),
        Activation::ScaledTanh(alpha, beta) => ("ALPHA * tanh_f(BETA * x)", alpha, beta),
        Activation::Affine(alpha, beta) => ("ALPHA * x + BETA", alpha, beta),
        Activation::Softsign => ("div_f(x, 1.0 + abs(x))", 0.0, 0.0),
        Activation::Softplus => ("softplus_f(x)", 0.0, 0.0),
    }
}

/// Properties of a node that prepare knows.
struct Layer<'a> {
    cell: Cell,
    shape: Extents,
    has: [bool; 8],
    gives: [bool; 3],
    reverse: bool,
    clip: Option<f32>,
    couples: bool,
    /// GRU: the reset gate acts behind the product with the state, whose bias then stays apart.
    resets_after: bool,
    /// Of one direction, or of both where they are the same.
    activations: &'a [Activation],
    /// Hidden units that there is room for, and threads of a workgroup.
    capacity: i64,
    threads: i64,
    /// Steps of one dispatch.
    n_steps: i64,
    /// Where the state is kept between dispatches, if that is not in inputs and outputs: hidden states, then cells.
    state: Option<Slot>,
}

fn prepare(request: &Request<'_>, cell: Cell) -> Result<Prepared> {
    let node = Recurrent::of(request, cell)?;
    let Extents { length, batch, inputs, directions, hidden, .. } = node.extents;
    if [length, batch, inputs, hidden].contains(&0) {
        return Err(Error::unsupported("a recurrent layer of no elements"));
    }
    let Some(capacity) = CAPACITIES.into_iter().find(|&capacity| hidden <= capacity) else {
        return Err(Error::unsupported(format!("a hidden size of {hidden}")));
    };
    let resets_after = cell == Cell::Gru && node.linear_before_reset;
    if capacity > GATES_MAX && resets_after {
        return Err(Error::unsupported(format!("linear_before_reset with a hidden size of {hidden}")));
    }
    let is_software = request.device.abilities.is_software;
    let threads_max = if is_software && capacity <= GATES_MAX { 64 } else { 256 };
    let threads = (cell.gates() * capacity).clamp(64, threads_max);
    let mut layer = Layer {
        cell,
        shape: node.extents,
        has: node.has,
        gives: node.gives,
        reverse: node.reverse,
        clip: node.clip,
        couples: node.input_forget,
        resets_after,
        activations: node.of_direction(0),
        capacity,
        threads,
        n_steps: length,
        state: None,
    };
    let mut build = Build::new(request);
    let turns_max = build.turns_max().min(TURNS_MAX);
    while layer.n_steps > 1 && layer.turns() > turns_max {
        layer.n_steps = div_up(layer.n_steps, 2);
    }
    if layer.n_steps < length || layer.n_buffers() > BUFFERS_MAX {
        layer.begin(&mut build)?;
    }
    let products = project(&mut build, &layer)?;
    let (r, r_strides) = recurrent_weights(&mut build, &layer)?;
    if node.of_direction(0) == node.of_direction(directions as usize - 1) {
        layer.add(&mut build, products, r, r_strides, 0..directions)?;
    } else {
        for d in 0..directions {
            layer.activations = node.of_direction(d as usize);
            layer.add(&mut build, products.clone(), r.clone(), r_strides, d..d + 1)?;
        }
    }
    layer.end(&mut build)?;
    build.finish()
}

/// Adds the products of all inputs with their weights, and the biases: rows as those of the input, of the gates of all
/// directions.
fn project(build: &mut Build, layer: &Layer<'_>) -> Result<Slot> {
    let Extents { length, batch, inputs, directions, hidden, .. } = layer.shape;
    let (n_rows, width) = (length * batch, layer.cell.gates() * hidden);
    let n_cols = directions * width;
    let n = product(&[n_rows, n_cols]);
    count(n)?;
    let to = build.scratch(n as u64 * 4);
    let mut buffers =
        vec![("x", "f32", Slot::Input(0)), ("w", "f32", Slot::Input(1)), ("y", "f32", to.clone())];
    let mut params = vec![("inputs".to_owned(), count(inputs)?), ("n_cols".to_owned(), count(n_cols)?)];
    let biased = match layer.has[3] {
        true => wgsl!("rnn/biased.wgsl", is_after = layer.resets_after),
        false => String::new(),
    };
    if layer.has[3] {
        buffers.push(("bias", "f32", Slot::Input(3)));
        params.push(("width".to_owned(), count(width)?));
    }
    if n_rows <= FEW_ROWS {
        let kept = Nest::new([(n_rows, 0), (n_cols, inputs)].into_iter());
        let lines = Lines::of(kept, Nest::new([(inputs, 1)].into_iter()));
        let (step, at) = lines.walk();
        let code = wgsl!("rnn/project.wgsl", row_max = FEW_ROWS - 1, step, at, biased);
        lines.add(
            build,
            LineStep {
                name: "project",
                buffers,
                params,
                functions: &lines.fold(build.abilities(), "total", "f32", "a + b"),
                code: &code,
            },
        )?;
        return Ok(to);
    }
    params.push(("n_rows".to_owned(), count(n_rows)?));
    let module = tiles::module(&Product {
        begin: "",
        a: "x[row * p.inputs + k]",
        b: "w[col * p.inputs + k]",
        b_by_columns: false,
        depth: "p.inputs",
        skips_negative: false,
        write: &format!("{biased}y[row * p.n_cols + col] = sum;"),
    });
    let groups = [tiles::along(n_cols), tiles::along(n_rows), 1];
    let (turns, body) = (tiles::turns(inputs), Body::Groups { groups, module: &module });
    build.add(ShaderStep { name: "project", buffers, params, turns, body })?;
    Ok(to)
}

/// The recurrent weights in fours, and how many fours it is from a gate's unit to the next, and along the state.
fn recurrent_weights(build: &mut Build, layer: &Layer<'_>) -> Result<(Slot, [i64; 2])> {
    let Extents { length, directions, hidden, .. } = layer.shape;
    let (width, fours) = (layer.cell.gates() * hidden, div_up(hidden, 4));
    if length < MANY_STEPS && hidden % 4 == 0 {
        return Ok((Slot::Input(2), [fours, 1]));
    }
    let n = directions * width * fours;
    let to = build.scratch(n as u64 * 16);
    build.add(ShaderStep {
        name: "turn weights",
        buffers: vec![("x", "f32", Slot::Input(2)), ("y", "vec4<f32>", to.clone())],
        params: vec![
            ("width".to_owned(), count(width)?),
            ("hidden".to_owned(), count(hidden)?),
            ("fours".to_owned(), count(fours)?),
        ],
        turns: turns(4, 0),
        body: Body::Items { n: n as u64, functions: "", each: &wgsl!("rnn/turn.wgsl") },
    })?;
    Ok((to, [1, width]))
}

impl Layer<'_> {
    /// Adds the steps of some directions.
    fn add(
        &self,
        build: &mut Build,
        products: Slot,
        r: Slot,
        [r_row, r_k]: [i64; 2],
        directions: std::ops::Range<i64>,
    ) -> Result<()> {
        let Extents { length, batch, hidden, batch_first, .. } = self.shape;
        let (n_directions, width) = (self.shape.directions, self.cell.gates() * hidden);
        let mut buffers = vec![("products", "f32", products), ("r", "vec4<f32>", r)];
        let is_apart = self.state.is_some();
        for (i, name, dtype, is_state) in [
            (4, "lengths", "i32", false),
            (5, "h0", "f32", true),
            (6, "c0", "f32", true),
            (7, "peepholes", "f32", false),
        ] {
            if self.has[i] && !(is_state && is_apart) {
                buffers.push((name, dtype, Slot::Input(i)));
            }
        }
        if self.has[3] && self.resets_after {
            buffers.push(("bias", "f32", Slot::Input(3)));
        }
        for (i, name) in ["y", "y_h", "y_c"].into_iter().enumerate() {
            if self.gives[i] && !(i > 0 && is_apart) {
                buffers.push((name, "f32", Slot::Output(i)));
            }
        }
        buffers.extend(self.state.clone().map(|slot| ("kept", "f32", slot)));
        let [x_t, x_b] = if batch_first { [1, length] } else { [batch, 1] };
        let [y_t, y_b, y_d] = if batch_first {
            [n_directions, length * n_directions, 1]
        } else {
            [n_directions * batch, 1, batch]
        };
        let [s_b, s_d] = if batch_first { [n_directions, 1] } else { [1, batch] };
        let numbers = [
            ("first", directions.start),
            ("batch", batch),
            ("length", length),
            ("hidden", hidden),
            ("width", width),
            ("all_width", n_directions * width),
            ("fours", div_up(hidden, 4)),
            ("r_row", r_row),
            ("r_k", r_k),
            ("reverse", i64::from(self.reverse)),
            ("x_t", x_t),
            ("x_b", x_b),
            ("y_t", y_t),
            ("y_b", y_b),
            ("y_d", y_d),
            ("s_b", s_b),
            ("s_d", s_d),
            ("n_state", self.n_state()),
        ];
        let mut params: Vec<(String, Param)> =
            numbers.iter().map(|&(name, n)| Ok((name.to_owned(), count(n)?))).collect::<Result<_>>()?;
        params.push(("clip".to_owned(), Param::F32(self.clip.unwrap_or(0.0))));
        let mut functions = String::new();
        for (i, activation) in self.activations.iter().enumerate() {
            let (alpha, beta) = (format!("alpha{i}"), format!("beta{i}"));
            let (code, of_alpha, of_beta) = written(*activation);
            let code = code.replace("ALPHA", &format!("p.{alpha}")).replace("BETA", &format!("p.{beta}"));
            params.push((alpha, Param::F32(of_alpha)));
            params.push((beta, Param::F32(of_beta)));
            // No clamp, which may lose NaN.
            let x = match self.clip {
                Some(_) => "at_least_f(at_most_f(v, p.clip), -p.clip)",
                None => "v",
            };
            functions += &format!("fn act{i}(v: f32) -> f32 {{ let x = {x}; return {code}; }}\n");
        }
        let module = self.module(&functions);
        let n_groups = (directions.end - directions.start) * batch;
        let groups = [u32::try_from(n_groups).unwrap_or(u32::MAX), 1, 1];
        let mut begin = 0;
        while begin < length {
            let end = (begin + self.n_steps).min(length);
            let mut params = params.clone();
            params.push(("begin".to_owned(), count(begin)?));
            params.push(("end".to_owned(), count(end)?));
            let body = Body::Groups { groups, module: &module };
            let (buffers, turns) = (buffers.clone(), self.turns());
            build.add(ShaderStep { name: "recur", buffers, params, turns, body })?;
            begin = end;
        }
        Ok(())
    }

    /// Turns of loops of a thread in one dispatch.
    fn turns(&self) -> u64 {
        let Extents { hidden, .. } = self.shape;
        let of_rows = |n: i64| turns(div_up(n, self.threads) as u64, turns(div_up(hidden, 4) as u64, 0));
        let of_units = turns(div_up(hidden, self.threads) as u64, 0);
        // Without the state of before, the candidate of a GRU is made after its gates.
        let of_sums = match self.cell {
            Cell::Gru => of_rows(2 * hidden) + of_rows(hidden),
            cell => of_rows(cell.gates() * hidden),
        };
        turns(self.n_steps as u64, of_sums + 3 * of_units) + 3 * of_units
    }

    /// Buffers of a dispatch if the state is in inputs and outputs.
    fn n_buffers(&self) -> usize {
        let of_inputs = self.has[4..].iter().filter(|has| **has).count();
        let of_outputs = self.gives.iter().filter(|gives| **gives).count();
        2 + of_inputs + of_outputs + usize::from(self.has[3] && self.resets_after)
    }

    /// Hidden states of all sequences; there are as many cells.
    fn n_state(&self) -> i64 {
        self.shape.directions * self.shape.batch * self.shape.hidden
    }

    /// Adds the state to begin with, in the workspace.
    fn begin(&mut self, build: &mut Build) -> Result<()> {
        let n = self.n_state();
        let state = build.scratch(2 * n as u64 * 4);
        let mut buffers = vec![("kept", "f32", state.clone())];
        let mut each = "kept[i] = 0.0;\n".to_owned();
        for (i, name, test, at) in
            [(5, "h0", "i < p.n_state", "i"), (6, "c0", "i >= p.n_state", "i - p.n_state")]
        {
            if self.has[i] {
                buffers.push((name, "f32", Slot::Input(i)));
                each += &format!("if ({test}) {{ kept[i] = {name}[{at}]; }}\n");
            }
        }
        let params = vec![("n_state".to_owned(), count(n)?)];
        let body = Body::Items { n: 2 * n as u64, functions: "", each: &each };
        build.add(ShaderStep { name: "begin", buffers, params, turns: 0, body })?;
        self.state = Some(state);
        Ok(())
    }

    /// Adds the step from the state that was kept to the outputs.
    fn end(&self, build: &mut Build) -> Result<()> {
        let Some(state) = self.state.clone().filter(|_| self.gives[1] || self.gives[2]) else {
            return Ok(());
        };
        let n = self.n_state();
        let mut buffers = vec![("kept", "f32", state)];
        let mut each = String::new();
        for (i, name, at) in [(1, "y_h", "i"), (2, "y_c", "p.n_state + i")] {
            if self.gives[i] {
                buffers.push((name, "f32", Slot::Output(i)));
                each += &format!("{name}[i] = kept[{at}];\n");
            }
        }
        let params = vec![("n_state".to_owned(), count(n)?)];
        build.add(ShaderStep {
            name: "end",
            buffers,
            params,
            turns: 0,
            body: Body::Items { n: n as u64, functions: "", each: &each },
        })
    }

    fn module(&self, functions: &str) -> String {
        let Self { capacity, threads, has, gives, .. } = self;
        let n_gates = self.cell.gates();
        let is_wide = *capacity > GATES_MAX;
        let barrier = if is_wide { "workgroupBarrier();\nstorageBarrier();" } else { "workgroupBarrier();" };
        let gates = match is_wide {
            true => String::new(),
            false => format!("var<workgroup> gates: array<f32, {}>;", n_gates * capacity),
        };
        let is_gru = self.cell == Cell::Gru;
        let is_reset = is_gru && !self.resets_after;
        let sums = |first, end, state| {
            let (is_after, has_bias) = (self.resets_after, has[3]);
            wgsl!("rnn/sums.wgsl", first, end, state, threads, is_after, has_bias)
        };
        let text = wgsl!(
            "rnn/recur.wgsl",
            functions = math::called_by(functions) + "\n" + functions,
            gates,
            capacity,
            threads,
            barrier,
            is_apart = self.state.is_some(),
            initial_h = if has[5] { "h0[state + j]" } else { "0.0" },
            initial_c = if has[6] && self.cell == Cell::Lstm { "c0[state + j]" } else { "0.0" },
            length = if has[4] { "u32(clamp(lengths[b], 0, i32(p.length)))" } else { "p.length" },
            sums = sums("thread", if is_reset { "2u * p.hidden" } else { "p.width" }, "h"),
            is_lstm = self.cell == Cell::Lstm,
            has_peepholes = has[7],
            is_coupled = self.couples,
            is_gru,
            is_after = self.resets_after,
            is_reset,
            later_sums = sums("2u * p.hidden + thread", "p.width", "other"),
            has_y = gives[0],
            has_y_h = gives[1],
            has_y_c = gives[2],
        );
        // Gates of wide layers take the place of the inputs' products, which they are the last to read.
        if is_wide { text.replace("gates[", "products[from_input + ") } else { text }
    }
}
