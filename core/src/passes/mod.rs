//! Passes over programs: one pass, one file.
//!
//! [`PASSES`] has them in the order in which they run, at three moments: once per model, before shapes are known, where
//! constants change so that all shapes share them; on each program of known types; and then for the kernels of the
//! device. Each has a name by which it is switched off ([`Switches`]) and reports its changes ([`Applied`]).

pub mod channels_last;
pub mod common_subexpressions;
pub mod dead_code;
pub mod fold_pads;
pub mod fold_scales;
pub mod fuse;
pub mod fuse_attention;
pub mod fuse_dequantized;
pub mod fuse_elementwise;
pub mod fuse_integers;
pub mod fuse_norms;
pub mod fuse_quantised;
pub mod hoist_concat;
pub mod hoist_loop_invariants;
pub mod lower_conv_transpose;
pub mod lower_einsum;
pub mod lower_quantised;
mod made;
pub mod narrow_dtypes;
mod range;
mod renames;
mod search;
pub mod share_constants;
pub mod simplify;
pub mod sink_transposes;
#[cfg(test)]
mod testing;
mod uses;

use crate::cancel::look;
use crate::device::rates::Rates;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::KernelTable;
use crate::program::fold::Evaluator;
use crate::program::{Node, Op, Program, Region, ValueId, catalogue};
use crate::progress::{Counter, Phase};
use crate::tensor::{BF16, F16, F32, F64, Tensor};
use narrow_dtypes::{Narrowed, Narrowing};
use std::cell::RefCell;
use std::fmt;

/// When a pass runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Once per model and session options: types may be unknown. Results of the program keep their names.
    Model,
    /// On the program for given input types.
    Shapes,
    /// After those, with the kernels of the device that has most of the program.
    Device,
}

/// One pass.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// Description in a line.
    pub doc: &'static str,
    /// When it runs.
    pub moments: &'static [Moment],
    /// Changes the program, and gives the number of changes.
    run: fn(&mut Program, &Around<'_>) -> Result<usize>,
}

/// All passes, in their order. Specialising folds constants between the first moment and the second, since types
/// depend on it; its switch is [`FOLD_CONSTANTS`].
pub const PASSES: &[Pass] = &[
    Pass {
        name: "fold-batch-norm",
        doc: "folds normalisations into the preceding convolution or product",
        moments: &[Moment::Model],
        run: |program, around| fold_scales::run(program, fold_scales::Folds::Normalisations, around.stay),
    },
    Pass {
        name: "fold-scales",
        doc: "folds factors and terms per channel into the preceding convolution or product",
        moments: &[Moment::Model],
        run: |program, around| fold_scales::run(program, fold_scales::Folds::Arithmetic, around.stay),
    },
    Pass {
        name: "share-constants",
        doc: "lets constants with equal bytes share them",
        moments: &[Moment::Model],
        run: |program, _| Ok(share_constants::run(program)),
    },
    Pass {
        name: "lower-einsum",
        doc: "makes matrix products of the sums that an Einsum names",
        moments: &[Moment::Shapes],
        run: |program, around| lower_einsum::run(program, around.stay),
    },
    Pass {
        name: "sink-transposes",
        doc: "moves transpositions behind ops that they commute with, until they meet others",
        moments: &[Moment::Shapes],
        run: |program, around| sink_transposes::run(program, around.stay),
    },
    Pass {
        name: "simplify",
        doc: "removes ops that change nothing, and turns those that only change the shape into views",
        moments: &[Moment::Shapes],
        run: |program, around| simplify::run(program, around.stay),
    },
    Pass {
        name: "common-subexpressions",
        doc: "calculates equal expressions once",
        moments: &[Moment::Shapes],
        run: |program, around| common_subexpressions::run(program, around.stay),
    },
    Pass {
        name: "fold-pads",
        doc: "folds zero padding into the following convolution",
        moments: &[Moment::Shapes],
        run: |program, around| fold_pads::run(program, around.stay),
    },
    Pass {
        name: "hoist-concat",
        doc: "applies an op once behind a Concat, instead of to each of its operands",
        moments: &[Moment::Shapes],
        run: |program, around| hoist_concat::run(program, around.stay),
    },
    Pass {
        name: "dead-code",
        doc: "removes nodes whose results are unused",
        moments: &[Moment::Model, Moment::Shapes, Moment::Device],
        run: |program, _| dead_code::remove(program),
    },
    Pass {
        name: "hoist-loop-invariants",
        doc: "calculates loop invariants once, in front of the loop",
        moments: &[Moment::Shapes],
        run: |program, around| hoist_loop_invariants::run(program, around.stay),
    },
    Pass {
        name: lower_quantised::NAME,
        doc: "keeps ops between DequantizeLinear and QuantizeLinear in integers",
        moments: &[Moment::Device],
        run: lower_quantised::run,
    },
    Pass {
        name: "fuse-attention",
        doc: "fuses attention, written as products, a Softmax and transpositions, into one op",
        moments: &[Moment::Device],
        run: |program, around| fuse_attention::run(program, around.kernels, around.stay),
    },
    Pass {
        name: "fuse-norms",
        doc: "fuses layer normalisations, GELUs and HardSwishes, written as many ops, into one op each",
        moments: &[Moment::Device],
        run: |program, around| fuse_norms::run(program, around.kernels, around.stay),
    },
    Pass {
        name: "narrow-dtypes",
        doc: "computes in narrower floats, if asked to",
        moments: &[Moment::Device],
        run: narrow_dtypes::run,
    },
    Pass {
        name: "lower-conv-transpose",
        doc: "makes convolutions of transposed ones, for devices that have them with channels last",
        moments: &[Moment::Device],
        run: lower_conv_transpose::run,
    },
    Pass {
        name: "channels-last",
        doc: "chooses for each image whether its channels come second or last",
        moments: &[Moment::Device],
        run: channels_last::run,
    },
    Pass {
        name: "fuse-integers",
        doc: "fuses the scaling of a product of 8-bit integers into it",
        moments: &[Moment::Device],
        run: |program, around| fuse_integers::run(program, around.kernels, around.stay),
    },
    Pass {
        name: fuse_dequantized::NAME,
        doc: "multiplies by quantised weights, and gathers rows of them, without making floats of all",
        moments: &[Moment::Device],
        run: fuse_dequantized::run,
    },
    Pass {
        name: "fuse-tails",
        doc: "fuses biases, residual additions and activations into the preceding convolution or product",
        moments: &[Moment::Device],
        run: |program, around| fuse::run(program, around.kernels, around.stay),
    },
    Pass {
        name: "fuse-elementwise",
        doc: "fuses consecutive elementwise ops into one",
        moments: &[Moment::Device],
        run: |program, around| fuse_elementwise::run(program, around.kernels, around.stay),
    },
    Pass {
        name: "fuse-quantised",
        doc: "fuses conversions to and from bytes into elementwise ops",
        moments: &[Moment::Device],
        run: |program, around| fuse_quantised::run(program, around.kernels, around.stay),
    },
];

/// The folding of constants, which is a part of specialising.
pub const FOLD_CONSTANTS: &str = "fold-constants";

/// The surroundings that a pass may ask.
pub struct Around<'a> {
    /// The kernels of the device that has most of the program; none before devices matter.
    pub kernels: &'a KernelTable,
    /// True if [`fuse_dequantized`] runs, and the device has kernels for what it makes.
    pub fuses_weights: bool,
    /// Usual rates, to choose between programs that differ in rounding. Not those of the device: results would have other bits
    /// once it was measured, or with streams of another kind.
    pub rates: Rates,
    /// Nodes that stay as they are, because they are pinned to a device by name.
    pub stay: &'a dyn Fn(&Node) -> bool,
    /// Floats that become narrower ones, and the constants that did; None for none.
    pub(crate) narrow: Option<(Narrowing, &'a Narrowed)>,
    /// Runs a node on constants.
    pub evaluator: RefCell<&'a mut dyn Evaluator>,
}

impl Around<'_> {
    /// The results of a node on constants; None if no kernel runs it.
    ///
    /// # Errors
    /// Errors that the kernel reports for these operands.
    pub fn evaluate(&self, node: &Node, inputs: &[Option<Tensor>]) -> Result<Option<Vec<Tensor>>> {
        self.evaluator.borrow_mut().evaluate(node, inputs)
    }
}

/// The passes that run: all, but for those that were switched off.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Switches {
    off: Vec<&'static str>,
}

impl Switches {
    /// The word that names all passes.
    pub const ALL: &'static str = "all";

    /// All passes but those of these names; `all` names every one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a name that no pass has.
    pub fn without<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Self> {
        let mut off: Vec<&'static str> = Vec::new();
        for name in names {
            let before = off.len();
            off.extend(Self::names().filter(|known| *known == name || name == Self::ALL));
            if off.len() == before {
                let known: Vec<_> = Self::names().collect();
                let text = format!("there is no pass `{name}`; there are {}", known.join(", "));
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        }
        off.sort_unstable();
        off.dedup();
        Ok(Self { off })
    }

    /// No passes at all.
    pub fn none() -> Self {
        let mut off: Vec<_> = Self::names().collect();
        off.sort_unstable();
        Self { off }
    }

    /// The names of all passes, in their order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let at =
            PASSES.iter().position(|pass| !pass.moments.contains(&Moment::Model)).unwrap_or(PASSES.len());
        let names = |passes: &'static [Pass]| passes.iter().map(|pass| pass.name);
        names(&PASSES[..at]).chain([FOLD_CONSTANTS]).chain(names(&PASSES[at..]))
    }

    /// Returns a pass's description in a line; None for a name that no pass has.
    pub fn doc(name: &str) -> Option<&'static str> {
        match PASSES.iter().find(|pass| pass.name == name) {
            Some(pass) => Some(pass.doc),
            None => (name == FOLD_CONSTANTS).then_some("nodes on constants alone run once, here"),
        }
    }

    /// Returns whether a pass runs.
    pub fn runs(&self, name: &str) -> bool {
        !self.off.contains(&name)
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.off.join(","))
    }
}

/// The effect of a pass on a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The pass.
    pub name: &'static str,
    /// Changes that it made.
    pub changes: usize,
    /// Nodes before it, those of nested regions included.
    pub before: usize,
    /// Nodes after it.
    pub after: usize,
}

impl Applied {
    /// Adds a pass's changes to those of its earlier runs.
    pub fn add(all: &mut Vec<Applied>, new: Applied) {
        match all.iter_mut().find(|known| known.name == new.name) {
            Some(known) => {
                // It ran again after others: its own removals count, not those of the passes in between.
                known.changes += new.changes;
                known.after = (known.after + new.after).saturating_sub(new.before);
            }
            None => all.push(new),
        }
    }
}

/// Maximum number of rounds of a moment's passes: the result of one pass may be the pattern of another.
const ROUNDS_MAX: usize = 4;

/// Runs the enabled passes of a moment, again until they change nothing, and returns the changes of each.
///
/// # Errors
/// Errors of passes: out of memory, or those that a kernel reports for constants.
pub fn run(
    program: &mut Program,
    moment: Moment,
    switches: &Switches,
    around: &Around<'_>,
) -> Result<Vec<Applied>> {
    let mut all = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let mut changes = 0;
        let runs = |pass: &&Pass| pass.moments.contains(&moment) && switches.runs(pass.name);
        let counter = Counter::begin(Phase::Optimise, PASSES.iter().filter(runs).count());
        for (i, pass) in PASSES.iter().filter(runs).enumerate() {
            look()?;
            let before = program.n_nodes();
            let made = (pass.run)(program, around)?;
            changes += made;
            Applied::add(
                &mut all,
                Applied { name: pass.name, changes: made, before, after: program.n_nodes() },
            );
            counter.done(i + 1);
        }
        if changes == 0 {
            break;
        }
    }
    Ok(all)
}

/// Calls `change` for each region of a program, those of nested nodes first, and returns the sum of its results.
fn each_region(
    program: &mut Program,
    change: &mut dyn FnMut(&mut Program, &mut Region) -> Result<usize>,
) -> Result<usize> {
    fn walk(
        program: &mut Program,
        region: &mut Region,
        change: &mut dyn FnMut(&mut Program, &mut Region) -> Result<usize>,
    ) -> Result<usize> {
        look()?;
        let mut changes = 0;
        for node in &mut region.nodes {
            for (_, nested) in &mut node.regions {
                changes += walk(program, nested, change)?;
            }
        }
        Ok(changes + change(program, region)?)
    }
    let mut main = std::mem::take(&mut program.main);
    let changes = walk(program, &mut main, change);
    program.main = main;
    changes
}

/// The number of a constant of one f32.
fn scalar(program: &Program, id: ValueId) -> Option<f32> {
    match program.constant(id)?.elements::<f32>()? {
        [value] => Some(*value),
        _ => None,
    }
}

/// Returns whether all elements of a tensor are finite; false for types of floats that are not looked into.
fn all_finite(tensor: &Tensor) -> bool {
    // An exponent of ones is that of infinities and NaN.
    let halves = |exponent: u16| {
        bytemuck::cast_slice::<u8, u16>(tensor.bytes()).iter().all(|bits| bits & exponent != exponent)
    };
    match tensor.dtype() {
        F32 => tensor.elements::<f32>().is_some_and(|all| all.iter().all(|value| value.is_finite())),
        F64 => tensor.elements::<f64>().is_some_and(|all| all.iter().all(|value| value.is_finite())),
        F16 => halves(0x7c00),
        BF16 => halves(0x7f80),
        _ => matches!(tensor.to_ints(), Ok(Some(_))),
    }
}

/// Returns whether each element of an op's result depends on one element of each operand.
fn is_elementwise(op: &Op) -> bool {
    catalogue::find(&op.domain, &op.name).is_some_and(|def| def.is_elementwise)
}

/// Returns whether all operands that determine the shape of a node's result are constant. A run checks its own inputs,
/// which may be wrong: a node that is removed or moved no longer reports the error. A known type does not help, since a
/// model may state any, and some follow from the other operand.
fn has_constant_shape(program: &Program, node: &Node) -> bool {
    let shaped_by = catalogue::find(&node.op.domain, &node.op.name).and_then(|def| def.shaped_by);
    let is_constant = |id: &ValueId| program.constant(*id).is_some();
    node.inputs.iter().skip(shaped_by.unwrap_or(usize::MAX)).flatten().all(is_constant)
}

/// Returns the axis that a number means, counted from the end if it is negative.
fn position(axis: i64, rank: usize) -> Option<usize> {
    usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok().filter(|&axis| axis < rank)
}

/// The Reshape of a value to these extents.
fn reshape(program: &mut Program, of: ValueId, to: &[usize], result: ValueId) -> Result<Node> {
    let extents: Vec<i64> = to.iter().map(|&extent| extent as i64).collect();
    let extents = program.add_constant("", Tensor::from_elements(&[to.len()], &extents)?);
    let def = catalogue::find("", "Reshape").expect("the catalogue has ONNX's ops");
    Ok(Node::new(Op::of(def), vec![Some(of), Some(extents)], vec![Some(result)]))
}

/// The limits of a Clip on f32, infinite where there is none; None if they come with a run.
fn clip_limits(program: &Program, node: &Node) -> Option<[f32; 2]> {
    let limit = |i: usize, absent: f32| node.input(i).map_or(Some(absent), |id| scalar(program, id));
    Some([limit(1, f32::NEG_INFINITY)?, limit(2, f32::INFINITY)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_switched_off_by_name() {
        let switches = Switches::without(["fuse-tails"]).unwrap();
        assert!(!switches.runs("fuse-tails") && switches.runs("fuse-elementwise"));
        assert_eq!(Switches::without([Switches::ALL]).unwrap(), Switches::none());
        assert!(Switches::names().all(|name| !Switches::none().runs(name)));
        let error = Switches::without(["fuse-tail"]).unwrap_err();
        assert!(error.to_string().contains("there is no pass `fuse-tail`"), "{error}");
    }

    #[test]
    fn names_are_told_apart_and_described() {
        let mut names: Vec<_> = Switches::names().collect();
        assert!(names.iter().all(|name| Switches::doc(name).is_some_and(|doc| !doc.is_empty())));
        let n_names = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), n_names), (n_names, PASSES.len() + 1));
    }

    #[test]
    fn what_a_pass_does_in_several_rounds_adds_up() {
        let did = |before, after| Applied { name: "dead-code", changes: before - after, before, after };
        let mut all = Vec::new();
        [did(10, 8), did(7, 6)].into_iter().for_each(|new| Applied::add(&mut all, new));
        assert_eq!(all, [Applied { name: "dead-code", changes: 3, before: 10, after: 7 }]);
    }
}
