//! One row of the table, and the constructors for writing it.

use crate::attributes::Attributes;
use crate::infer::InferFn;
use crate::operands::{Fault, Operands, Side};

/// Domain of the ops that devbay's passes create.
pub const DEVBAY_DOMAIN: &str = "devbay";

/// Domain of ONNX's ops for classical machine learning.
pub const ML_DOMAIN: &str = "ai.onnx.ml";

/// Domain of onnxruntime's additional ops.
pub const MICROSOFT_DOMAIN: &str = "com.microsoft";

/// The part of the system that runs an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A kernel of a device.
    Kernel,
    /// No part: the result is the first input's bytes with another shape.
    View,
    /// The host, from the input's type alone: Shape and Size.
    Query,
    /// The host: If, Loop, Scan.
    Control,
}

/// The kind of work that an op's kernels mostly do. A device's throughput differs between kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A few operations per element, and anything that fits no other kind.
    Elements,
    /// A chain of such operations, fused.
    Chain,
    /// Products of windows with filters.
    Convolution,
    /// Products of matrices, or many sums of products.
    Product,
    /// Reductions over windows.
    Pooling,
    /// Reductions over lines.
    Reduction,
    /// Elements that move in runs, whose length depends on shapes and axes.
    Movement,
    /// Elements that move in long runs.
    Copying,
    /// Elements that move one by one.
    Permutation,
}

/// The element types of a formula.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Floating-point numbers.
    Floats,
    /// Integers.
    Integers,
    /// Truth values.
    Truths,
    /// Floats and signed integers.
    Signed,
    /// Floats and integers of any kind.
    Numbers,
    /// Numbers and truth values.
    Anything,
}

/// One way to compute an elementwise op: its formula, and the condition for using it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Form {
    /// The op's name, or a name of its own if the op has several forms.
    pub name: &'static str,
    /// The attribute and value that select it; None for the usual form.
    pub when: Option<(&'static str, &'static str)>,
    /// The element types that it takes.
    pub takes: Takes,
    /// True if its elements are truth values instead of the operands' type.
    pub gives_truth: bool,
    /// True if its operand `acc` is its result for the preceding operands.
    pub is_fold: bool,
    /// Optional operands that are one number each, with their defaults.
    pub absent: &'static [(&'static str, f32)],
    /// Approximate arithmetic operations per element.
    pub flops: u64,
    /// The formula ([`crate::formula`]).
    pub text: &'static str,
}

/// The possible failure of an op on operands of valid types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Unspecified: it may fail.
    Possible,
    /// It may fail on integers: a divisor of zero, a negative exponent.
    OnIntegers,
    /// Never: it looks up no indices, and extents given as operands are constants.
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
    /// Oldest version that differs from it only in element types.
    pub same_since: u32,
    /// Oldest version whose nodes are valid nodes of `version` unchanged: later versions only added to it, with defaults
    /// that keep the old meaning, or clarified it.
    pub lifts_since: u32,
    /// The part of the system that runs it.
    pub kind: OpKind,
    /// Its inputs.
    pub inputs: Operands,
    /// Its outputs.
    pub outputs: Operands,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its formulas, if it is elementwise and has one.
    pub forms: [Option<Form>; 2],
    /// True if each element of the result depends on one element of each operand, which are broadcast to it. Operands that
    /// must be scalars, such as the limits of a Clip, are allowed.
    pub is_elementwise: bool,
    /// True if its operands are broadcast to the first one instead of to each other.
    pub keeps_first_shape: bool,
    /// True if `FusedElementwise` supports it, under the names of its forms (`docs/fused-ops.md`).
    pub is_fused: bool,
    /// Its possible failure.
    pub failure: Failure,
    /// The kind of work that its kernels mostly do.
    pub work: Work,
    /// From this input on, operands determine the result's shape.
    pub shaped_by: Option<usize>,
    /// True if the values of its operands determine the result's size.
    pub has_data_shape: bool,
    /// Inference of its results, only in the table's lines: [`infer::of`](crate::infer::of) covers every row, so that a
    /// plugin that reads rows is linked without inference.
    pub(crate) infer: Option<InferFn>,
    /// Its position in [`ROWS`](crate::ROWS).
    pub(crate) at: usize,
}

impl OpRow {
    /// Creates a row of an ONNX op that a kernel runs; the methods below add to it.
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

    /// Sets its attributes, in the form of [`Attributes`].
    pub(crate) const fn with(self, attributes: &'static str) -> Self {
        Self { attributes: Attributes::of(attributes), ..self }
    }

    /// Sets the oldest versions that differ only in types, and whose nodes are lifted unchanged.
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

    /// Sets the formula as [`OpRow::formula`] does, for one operation that returns a truth value.
    pub(crate) const fn relation(self, takes: Takes, text: &'static str) -> Self {
        let row = self.formula(takes, 1, text);
        match row.forms[0] {
            Some(form) => Self { forms: [Some(Form { gives_truth: true, ..form }), None], ..row },
            None => row,
        }
    }

    /// Sets the formula as [`OpRow::formula`] does, for one operation folded over any number of operands: `acc` is the
    /// result for the preceding ones.
    pub(crate) const fn fold(self, takes: Takes, text: &'static str) -> Self {
        let row = self.formula(takes, 1, text);
        match row.forms[0] {
            Some(form) => Self { forms: [Some(Form { is_fold: true, ..form }), None], ..row },
            None => row,
        }
    }

    /// Sets its other form, for a given value of an attribute.
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

    /// Sets the defaults of optional operands of the formula that are one number each.
    pub(crate) const fn absent(self, absent: &'static [(&'static str, f32)]) -> Self {
        match self.forms[0] {
            Some(form) => Self { forms: [Some(Form { absent, ..form }), None], ..self },
            None => self,
        }
    }

    /// Marks it as elementwise, without a formula.
    pub(crate) const fn elementwise(self) -> Self {
        Self { is_elementwise: true, ..self }
    }

    /// Marks its operands as broadcast to the first one.
    pub(crate) const fn keeps_first_shape(self) -> Self {
        Self { keeps_first_shape: true, ..self }
    }

    /// Marks it as supported by `FusedElementwise`.
    pub(crate) const fn fused(self) -> Self {
        Self { is_fused: true, ..self }
    }

    /// Marks it as unable to fail.
    pub(crate) const fn cannot_fail(self) -> Self {
        Self { failure: Failure::Never, ..self }
    }

    /// Marks it as able to fail only on integers.
    pub(crate) const fn may_fail_on_integers(self) -> Self {
        Self { failure: Failure::OnIntegers, ..self }
    }

    /// Sets the kind of work that its kernels mostly do, unless that is work on single elements.
    pub(crate) const fn work(self, work: Work) -> Self {
        Self { work, ..self }
    }

    /// Sets the first of the inputs that determine the result's shape.
    pub(crate) const fn shaped_by(self, first: usize) -> Self {
        Self { shaped_by: Some(first), ..self }
    }

    /// Marks the values of its operands as determining the result's size.
    pub(crate) const fn data_shape(self) -> Self {
        Self { has_data_shape: true, ..self }
    }

    /// Sets its inference. Elementwise ops with a formula infer from it, and control flow has none.
    pub(crate) const fn infer(self, infer: InferFn) -> Self {
        Self { infer: Some(infer), ..self }
    }

    /// Returns whether its inputs may have several types.
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

    /// Compares a kernel's descriptor with the row: the minimum and maximum number of inputs and outputs, `u32::MAX` for any
    /// number. A kernel requires the op's required operands, and has no more operands than the op. It may require more, and
    /// have fewer: it is then not asked for some nodes.
    ///
    /// # Errors
    /// A count that contradicts the op's.
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

    /// Returns whether equal inputs always give equal results, so that it may be folded. False for control flow, whose
    /// results depend on its regions and their captures.
    pub const fn is_pure(&self) -> bool {
        !matches!(self.kind, OpKind::Control)
    }
}
