//! Several elementwise ops in one pass over memory: devbay's FusedElementwise.
//!
//! Each op's own loop runs over a strip of the result at a time, which stays in the nearest cache; what lies between two
//! ops is in slots on the stack. So every element is what the ops one by one would have made of it.

use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::kernels::cost;
use crate::kernels::elementwise::binary::{self, Add, Div, Larger, Mul, Smaller, Sub};
use crate::kernels::elementwise::formulas::{self, Interpreter};
use crate::kernels::elementwise::loops::grain;
use crate::kernels::elementwise::unary::{self, Params};
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::shape::{Broadcast, Rows};
use crate::stream::CpuStream;
use devbay_ops::descriptor_of;
use devbay_ops::formula;
use devbay_plugin_api::sdk::*;
use std::mem::MaybeUninit;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

/// Elements of a strip.
pub(crate) const STRIP: usize = 512;
/// Results that are kept for later ops at one time, at most.
const SLOTS_MAX: usize = 12;
/// Inputs, at most.
pub(crate) const INPUTS_MAX: usize = 7;

/// Operations that take as long as a strip's way through a step of one: loads and a store. Of steps alone on 64 x 1024
/// elements, from Sigmoid with 25 to Mish with 90, each took as long as one cheap step for 3 to 7 operations.
const STEP_FLOPS: u64 = 5;

/// The kernel of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor_of("devbay", "FusedElementwise", 1, prepare)
    .types(&[TypeVar::of(&[F32])])
    .in_place(&[0])
    .cost(cost_of_steps)
    .doc("elementwise ops one after the other, strip by strip")];

/// The cost of the steps that attributes list.
pub(crate) fn cost_of_steps(request: &Request<'_>) -> Result<Cost> {
    let steps = fused_steps(request)?;
    cost::per_output(request, steps.iter().map(|step| flops(step.op).div_ceil(STEP_FLOPS)).sum())
}

/// Operations for an element, roughly.
fn flops(op: &str) -> u64 {
    formula::find(op).map_or(1, |formula| formula.form.flops)
}

fn binary_body(op: &str, isa: Isa) -> Option<binary::Body> {
    match op {
        "Add" => Some(binary::body::<Add<f32>>(isa)),
        "Div" => Some(binary::body::<Div<f32>>(isa)),
        "Max" => Some(binary::body::<Larger<f32>>(isa)),
        "Min" => Some(binary::body::<Smaller<f32>>(isa)),
        "Mul" => Some(binary::body::<Mul<f32>>(isa)),
        "Sub" => Some(binary::body::<Sub<f32>>(isa)),
        _ => None,
    }
}

/// Returns whether an op of two operands has a loop here.
#[cfg(test)]
pub(crate) fn has_pair(op: &str) -> bool {
    binary_body(op, Isa::Baseline).is_some()
}

/// Place of an operand of a step.
#[derive(Clone, Copy)]
enum From {
    Input(usize),
    Slot(usize),
    Constant(f32),
}

enum Work {
    Unary {
        body: unary::Body,
        params: Params,
        x: From,
    },
    /// One that has no loop of its own.
    Formula {
        interpreter: Interpreter,
        x: From,
    },
    Binary {
        body: binary::Body,
        operands: [From; 2],
    },
}

/// One op, and the slot that its result goes to; None for the node's own.
struct PlacedStep {
    work: Work,
    to: Option<usize>,
}

/// Ops of a chain, and how its operands are broadcast.
pub(crate) struct Fused {
    host: Host,
    plan: Broadcast<INPUTS_MAX>,
    /// Operands.
    pub n_inputs: usize,
    steps: Vec<PlacedStep>,
    grain: usize,
    /// Multiplies by 1: brings a row that is broadcast into a slot.
    copy: binary::Body,
}

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    Fused::of(request).map(Prepared::new)
}

/// The steps with slots for their results; a slot is free again behind its last reader.
fn placed(steps: &[FusedStep<'_>], isa: Isa) -> Result<Vec<PlacedStep>> {
    let n_operands = |step: &FusedStep<'_>| if binary_body(step.op, isa).is_some() { 2 } else { 1 };
    let mut last_reader = vec![0; steps.len()];
    for (i, step) in steps.iter().enumerate() {
        for operand in &step.operands[..n_operands(step)] {
            if let FusedOperand::Step(made) = operand {
                last_reader[*made] = i;
            }
        }
    }
    let mut held: [Option<usize>; SLOTS_MAX] = [None; SLOTS_MAX];
    let mut slots = vec![0; steps.len()];
    let mut placed = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        let from = |operand: FusedOperand| match operand {
            FusedOperand::Input(input) => From::Input(input),
            FusedOperand::Step(made) => From::Slot(slots[made]),
            FusedOperand::Constant(number) => From::Constant(number),
        };
        let [a, b] = step.operands.map(from);
        let work = match (formulas::body(step.op, isa), binary_body(step.op, isa), formula::find(step.op)) {
            (Some(body), ..) => Work::Unary { body, params: Params::of(step.params), x: a },
            (_, Some(body), _) => Work::Binary { body, operands: [a, b] },
            (.., Some(formula)) if !formula.gives_truth() => {
                Work::Formula { interpreter: Interpreter::new(formula, step.params)?, x: a }
            }
            _ => return Err(Error::unsupported(format!("{} among fused ops", step.op))),
        };
        // A loop may write where it reads, so operands that are read here for the last time are free already.
        for slot in &mut held {
            slot.take_if(|made| last_reader[*made] <= i);
        }
        let to = if i + 1 == steps.len() {
            None
        } else {
            let free = held.iter().position(Option::is_none);
            let free =
                free.ok_or_else(|| Error::unsupported("more results at one time than there is room for"))?;
            held[free] = Some(i);
            slots[i] = free;
            Some(free)
        };
        placed.push(PlacedStep { work, to });
    }
    Ok(placed)
}

/// Memory of a chunk: a strip for each result that is kept, and one for a row that is broadcast. What a step reads here,
/// one before it wrote; filling all of it first would take longer than a small launch.
pub(crate) type Slots = MaybeUninit<[[f32; STRIP]; SLOTS_MAX + 1]>;

/// Rows of a strip: where the inputs are, and how the loops walk over them.
pub(crate) struct Strip<'a> {
    pub inputs: [*const f32; INPUTS_MAX],
    pub y: *mut f32,
    /// How the inputs go on from row to row, and from column to column.
    pub rows: &'a Rows<INPUTS_MAX>,
    pub n_rows: usize,
    pub n_cols: usize,
}

impl Strip<'_> {
    /// An operand's address, and its elements to the next row and to the next column.
    fn operand(&self, from: &From, slots: *const [f32; STRIP]) -> (*const u8, usize, usize) {
        match from {
            From::Input(i) => (self.inputs[*i].cast(), self.rows.steps[*i], self.rows.inner[*i]),
            From::Slot(slot) => (slots.wrapping_add(*slot).cast(), self.n_cols, 1),
            From::Constant(number) => (std::ptr::from_ref(number).cast(), 0, 0),
        }
    }

    /// Returns the rows that a loop of two operands walks over.
    fn walk(&self, steps: [usize; 2], inner: [usize; 2]) -> Rows<2> {
        Rows { n_rows: self.n_rows, n_cols: self.n_cols, steps, inner }
    }
}

impl Fused {
    /// The chain that a node's attributes list.
    pub(crate) fn of(request: &Request<'_>) -> Result<Self> {
        let steps = fused_steps(request)?;
        let n_inputs = request.inputs.len();
        if n_inputs > INPUTS_MAX {
            return Err(Error::unsupported(format!("{n_inputs} inputs, {INPUTS_MAX} are the most")));
        }
        let out = extents(request.required_output(0)?)?;
        let inputs: Vec<_> =
            (0..n_inputs).map(|i| extents(request.required_input(i)?)).collect::<Result<_>>()?;
        let mut shapes: [&[usize]; INPUTS_MAX] = [&[]; INPUTS_MAX];
        shapes.iter_mut().zip(&inputs).for_each(|(shape, input)| *shape = input);
        let isa = request.device.isa;
        Ok(Self {
            host: request.host,
            plan: Broadcast::new(&out, shapes)?,
            n_inputs,
            grain: grain(steps.iter().map(|step| flops(step.op)).sum()),
            steps: placed(&steps, isa)?,
            copy: binary::body::<Mul<f32>>(isa),
        })
    }

    /// Calls `body` for each strip of the result, in parallel, with memory of its thread's own: with the first element of each
    /// operand and of the result, the rows, and how many rows and columns of them there are. Chunks are apart.
    pub(crate) fn each_strip<M>(
        &self,
        memory: impl Fn() -> M + Sync,
        body: impl Fn(&mut M, [usize; INPUTS_MAX], usize, (&Rows<INPUTS_MAX>, usize, usize)) + Sync,
    ) -> Result<()> {
        self.host.parallel_for(self.plan.len(), self.grain, |range, _| {
            let mut memory = memory();
            self.plan.walk(range, |first, at, rows| {
                let rows_per_strip = (STRIP / rows.n_cols).max(1);
                for row in (0..rows.n_rows).step_by(rows_per_strip) {
                    for col in (0..rows.n_cols).step_by(STRIP) {
                        let mut starts = first;
                        for (i, start) in starts.iter_mut().enumerate() {
                            *start += row * rows.steps[i] + col * rows.inner[i];
                        }
                        let n_rows = rows_per_strip.min(rows.n_rows - row);
                        let n_cols = STRIP.min(rows.n_cols - col);
                        body(&mut memory, starts, at + row * rows.n_cols + col, (rows, n_rows, n_cols));
                    }
                }
            });
            Ok(())
        })
    }

    /// Where an operand's rows stand one behind the other: where it is, or a copy.
    ///
    /// # Safety
    /// As [`Fused::run`], of a strip whose memory begins at `slots`.
    unsafe fn packed(&self, strip: &Strip<'_>, x: &From, slots: *mut [f32; STRIP]) -> *const u8 {
        let (x, steps, inner) = strip.operand(x, slots);
        if inner != 0 && (strip.n_rows == 1 || steps == strip.n_cols) {
            return x;
        }
        let copied = slots.wrapping_add(SLOTS_MAX).cast::<f32>();
        let rows = strip.walk([steps, 0], [inner, 0]);
        let one = std::ptr::from_ref(&1.0f32).cast();
        // SAFETY: the strip's rows lie within the operands, and the copy has room for a strip (# Safety).
        unsafe { (self.copy)(x, one, copied.cast(), &rows) };
        copied.cast_const().cast()
    }

    /// Runs all steps on a strip.
    ///
    /// # Safety
    /// The strip's rows lie within the operands, and no other thread writes its part of the result; it is no longer than
    /// [`STRIP`].
    pub(crate) unsafe fn run(&self, strip: &Strip<'_>, memory: &mut Slots) {
        let slots: *mut [f32; STRIP] = memory.as_mut_ptr().cast();
        let n = strip.n_rows * strip.n_cols;
        for step in &self.steps {
            let y: *mut u8 = match step.to {
                Some(slot) => slots.wrapping_add(slot).cast(),
                None => strip.y.cast(),
            };
            match &step.work {
                Work::Unary { body, params, x } => {
                    // SAFETY: the strip's rows lie within the operands (# Safety), and the memory has room for a strip.
                    let x = unsafe { self.packed(strip, x, slots) };
                    // SAFETY: `x` and `y` have the strip's `n` elements, for which slots have room.
                    unsafe { body(x, y, n, params) };
                }
                Work::Formula { interpreter, x } => {
                    // SAFETY: the strip's rows lie within the operands (# Safety), and the memory has room for a strip.
                    let x = unsafe { self.packed(strip, x, slots) };
                    // SAFETY: `x` and `y` have the strip's `n` elements, for which slots have room.
                    unsafe { interpreter.run_singles(x.cast(), y.cast(), n) };
                }
                Work::Binary { body, operands: [a, b] } => {
                    let (a, a_steps, a_inner) = strip.operand(a, slots);
                    let (b, b_steps, b_inner) = strip.operand(b, slots);
                    let rows = strip.walk([a_steps, b_steps], [a_inner, b_inner]);
                    // SAFETY: the strip's rows lie within the operands (# Safety), and slots have room for a strip.
                    unsafe { body(a, b, y, &rows) };
                }
            }
        }
    }
}

impl Launch<CpuDevice> for Fused {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut inputs = [SendPtr(std::ptr::null_mut::<f32>()); INPUTS_MAX];
        for (i, input) in inputs.iter_mut().take(self.n_inputs).enumerate() {
            *input = SendPtr(operands.input_ptr::<f32>(i).cast_mut());
        }
        let y = SendPtr(operands.output_ptr::<f32>(0));
        self.each_strip(Slots::uninit, |memory, first, at, (rows, n_rows, n_cols)| {
            let mut starts = [std::ptr::null(); INPUTS_MAX];
            for (i, start) in starts.iter_mut().enumerate() {
                *start = inputs[i].at(first[i]).cast_const();
            }
            let strip = Strip { inputs: starts, y: y.at(at), rows, n_rows, n_cols };
            // SAFETY: the rows lie within the operands (`walk`, whose shapes `prepare` was told); chunks are apart.
            unsafe { self.run(&strip, memory) };
        })
    }
}
