//! One row of the table, and the words that it is written with.

use crate::attributes::Attributes;
use crate::infer::InferFn;
use crate::operands::{Fault, Operands, Side};

/// Domain of the ops that devbay's passes make.
pub const DEVBAY_DOMAIN: &str = "devbay";

/// Domain of ONNX's ops for classical machine learning.
pub const ML_DOMAIN: &str = "ai.onnx.ml";

/// Domain of the ops that onnxruntime has beside ONNX's.
pub const MICROSOFT_DOMAIN: &str = "com.microsoft";

/// Who runs an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A kernel of a device.
    Kernel,
    /// Nobody: the result is the first input's bytes with another shape.
    View,
    /// The host, from the input's type alone: Shape and Size.
    Query,
    /// The host: If, Loop, Scan.
    Control,
}

/// The kind of work that an op's kernels mostly do. Devices do as many operations of one kind faster than of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A few operations for each element, or nothing of the following.
    Elements,
    /// A chain of such operations, fused.
    Chain,
    /// Products of windows with filters.
    Convolution,
    /// Products of matrices, or many sums of products.
    Product,
    /// Windows that are folded.
    Pooling,
    /// Lines that are folded.
    Reduction,
    /// Elements that move in runs, of a length that depends on shapes and axes.
    Movement,
    /// Elements that move in long runs.
    Copying,
    /// Elements that move one by one.
    Permutation,
}

/// The element types that a formula is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Floating-point numbers.
    Floats,
    /// Integers.
    Integers,
    /// Truth values.
    Truths,
    /// Floats and integers with a sign.
    Signed,
    /// Floats and integers of any kind.
    Numbers,
    /// Numbers and truth values.
    Anything,
}

/// One way to compute an elementwise op: its formula, and when it is the one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Form {
    /// The op's name, or one of its own where the op has several.
    pub name: &'static str,
    /// An attribute and its value for which it is the one; None for the usual form.
    pub when: Option<(&'static str, &'static str)>,
    /// The element types that it takes.
    pub takes: Takes,
    /// True if its elements are truth values, and not of the type that it takes.
    pub gives_truth: bool,
    /// True if its operand `acc` is its result for the operands before.
    pub is_fold: bool,
    /// Optional operands that are one number each, and what they are where there is none.
    pub absent: &'static [(&'static str, f32)],
    /// Arithmetic operations for an element, roughly.
    pub flops: u64,
    /// The formula ([`crate::formula`]).
    pub text: &'static str,
}

/// The possible failure of an op on operands of fitting types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Not said: it may fail.
    Possible,
    /// An integer may make it fail: a divisor of zero, an exponent below it.
    OnIntegers,
    /// Never: it looks up no indices, and extents that are given as operands are constants.
    Never,
}

/// One op in one version.
#[derive(Clone, Copy, Debug)]
pub struct OpRow {
    /// Domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Name.
    pub name: &'static str,
    /// The version that programs hold: the opset in which the definition appeared.
    pub version: u32,
    /// Oldest version that differs from it in element types alone.
    pub same_since: u32,
    /// Oldest version whose nodes are nodes of `version` as they stand: what came in between was added, with
    /// defaults that keep the old meaning, or made clear.
    pub lifts_since: u32,
    /// Who runs it.
    pub kind: OpKind,
    /// Its inputs.
    pub inputs: Operands,
    /// Its outputs.
    pub outputs: Operands,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its formulas, if it is elementwise and has one.
    pub forms: [Option<Form>; 2],
    /// True if each element of the result depends on one element of each operand, which are broadcast to it. What must be a scalar,
    /// as the limits of a Clip, may be one.
    pub is_elementwise: bool,
    /// True if its operands are broadcast to the first one, and not to each other.
    pub keeps_first_shape: bool,
    /// True if `FusedElementwise` has it, under the names of its forms (`docs/fused-ops.md`).
    pub is_fused: bool,
    /// Its possible failure.
    pub failure: Failure,
    /// The kind of work that its kernels mostly do.
    pub work: Work,
    /// From this input on, operands say how the result is shaped.
    pub shaped_by: Option<usize>,
    /// True if the values of its operands decide how large the result is.
    pub has_data_shape: bool,
    /// Types of its results, in the table's lines alone: [`infer::of`](crate::infer::of) has them of every row, and a plugin that
    /// reads rows is linked without inference.
    pub(crate) infer: Option<InferFn>,
    /// Its position in [`ROWS`](crate::ROWS).
    pub(crate) at: usize,
}

impl OpRow {
    /// A row of an op of ONNX's that a kernel runs; the words below add to it.
    pub(crate) const fn new(
        name: &'static str,
        version: u32,
        inputs: &'static str,
        outputs: &'static str,
    ) -> Self {
        Self {
            domain: "",
            name,
            version,
            same_since: version,
            lifts_since: version,
            kind: OpKind::Kernel,
            inputs: Operands::of(Side::Input, inputs),
            outputs: Operands::of(Side::Output, outputs),
            attributes: Attributes::of(""),
            forms: [None; 2],
            is_elementwise: false,
            keeps_first_shape: false,
            is_fused: false,
            failure: Failure::Possible,
            work: Work::Elements,
            shaped_by: None,
            has_data_shape: false,
            infer: None,
            at: 0,
        }
    }

    /// Its attributes, as [`Attributes`] has them.
    pub(crate) const fn with(self, attributes: &'static str) -> Self {
        Self { attributes: Attributes::of(attributes), ..self }
    }

    /// The oldest versions that differ in types alone, and whose nodes are lifted as they stand.
    pub(crate) const fn since(self, same_since: u32, lifts_since: u32) -> Self {
        Self { same_since, lifts_since, ..self }
    }

    /// Sets the formula of each element, with its number of operations.
    pub(crate) const fn formula(self, takes: Takes, flops: u64, text: &'static str) -> Self {
        let form = Form {
            name: self.name,
            when: None,
            takes,
            gives_truth: false,
            is_fold: false,
            absent: &[],
            flops,
            text,
        };
        let failure = match self.failure {
            Failure::Possible => Failure::Never,
            said => said,
        };
        Self { forms: [Some(form), None], is_elementwise: true, failure, ..self }
    }

    /// As [`OpRow::formula`], of one operation that gives a truth.
    pub(crate) const fn relation(self, takes: Takes, text: &'static str) -> Self {
        let row = self.formula(takes, 1, text);
        match row.forms[0] {
            Some(form) => Self { forms: [Some(Form { gives_truth: true, ..form }), None], ..row },
            None => row,
        }
    }

    /// As [`OpRow::formula`], of one operation that takes any number of operands one after the other: `acc` is what those before gave.
    pub(crate) const fn fold(self, takes: Takes, text: &'static str) -> Self {
        let row = self.formula(takes, 1, text);
        match row.forms[0] {
            Some(form) => Self { forms: [Some(Form { is_fold: true, ..form }), None], ..row },
            None => row,
        }
    }

    /// Sets its other form, where an attribute has a value.
    pub(crate) const fn or_if(
        self,
        attribute: &'static str,
        value: &'static str,
        name: &'static str,
        takes: Takes,
        text: &'static str,
    ) -> Self {
        match self.forms[0] {
            Some(form) => {
                let other = Form { name, when: Some((attribute, value)), takes, text, ..form };
                Self { forms: [Some(form), Some(other)], ..self }
            }
            None => self,
        }
    }

    /// Sets the values of optional operands of the formula that are one number each, for nodes without them.
    pub(crate) const fn absent(self, absent: &'static [(&'static str, f32)]) -> Self {
        match self.forms[0] {
            Some(form) => Self { forms: [Some(Form { absent, ..form }), None], ..self },
            None => self,
        }
    }

    /// It is elementwise, without a formula.
    pub(crate) const fn elementwise(self) -> Self {
        Self { is_elementwise: true, ..self }
    }

    /// Its operands are broadcast to the first one.
    pub(crate) const fn keeps_first_shape(self) -> Self {
        Self { keeps_first_shape: true, ..self }
    }

    /// `FusedElementwise` has it.
    pub(crate) const fn fused(self) -> Self {
        Self { is_fused: true, ..self }
    }

    /// It cannot fail.
    pub(crate) const fn cannot_fail(self) -> Self {
        Self { failure: Failure::Never, ..self }
    }

    /// It can fail on integers alone.
    pub(crate) const fn may_fail_on_integers(self) -> Self {
        Self { failure: Failure::OnIntegers, ..self }
    }

    /// Sets the kind of work that its kernels mostly do, if that is not elements one by one.
    pub(crate) const fn work(self, work: Work) -> Self {
        Self { work, ..self }
    }

    /// The inputs that say how the result is shaped, from this one on.
    pub(crate) const fn shaped_by(self, first: usize) -> Self {
        Self { shaped_by: Some(first), ..self }
    }

    /// The values of operands decide how large the result is.
    pub(crate) const fn data_shape(self) -> Self {
        Self { has_data_shape: true, ..self }
    }

    /// The types of its results. Those of elementwise ops with a formula follow from it, and control flow has none.
    pub(crate) const fn infer(self, infer: InferFn) -> Self {
        Self { infer: Some(infer), ..self }
    }

    /// Returns whether its inputs may be of several types.
    pub const fn has_mixed_types(&'static self) -> bool {
        let (types, mut i) = (self.inputs.types(), 0);
        while i < types.len() {
            if types[i] != types[0] {
                return true;
            }
            i += 1;
        }
        false
    }

    /// Checks the number and presence of a node's operands.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn check<I, O>(&self, inputs: &[Option<I>], outputs: &[Option<O>]) -> Result<(), Fault> {
        self.inputs.check(inputs)?;
        self.outputs.check(outputs)
    }

    /// Compares a kernel's descriptor with the row: the fewest and the most inputs and outputs, `u32::MAX` for any number.
    /// A kernel requires what the op requires, and has no more operands than the op. It may require more, and have fewer:
    /// then it is not asked for some nodes.
    ///
    /// # Errors
    /// A count that is not as the op has it.
    pub fn check_counts(&self, inputs: (u32, u32), outputs: (u32, u32)) -> Result<(), String> {
        for (side, operands, (min, max)) in
            [(Side::Input, self.inputs, inputs), (Side::Output, self.outputs, outputs)]
        {
            let (min, max) = (min as usize, max as usize);
            if min < operands.n_min() {
                return Err(format!("requires {min} {side}s, the op {} ({operands:?})", operands.n_min()));
            }
            let most = operands.n_max().unwrap_or(u32::MAX as usize);
            if max > most {
                return Err(format!("has {max} {side}s, the op {most} ({operands:?})"));
            }
        }
        Ok(())
    }

    /// Returns whether the same inputs always give the same result, so that it may be folded. False for control flow,
    /// whose results depend on its regions and what they capture.
    pub const fn is_pure(&self) -> bool {
        !matches!(self.kind, OpKind::Control)
    }
}
