//! Changes that make a model hostile, and the list of them for a seed.
//!
//! The lists depend on the seed and on what attributes its op has in any node test, and on nothing else: a case is named
//! by its seed and its position in the list.

use super::seed::{Array, HostileModel, Seed, bits, field, forget_shapes, remove_named};
use super::wire::{Message, Wire, int, text};
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::fmt;

/// A number that a shape, an index, a count or a size is set to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Whole {
    pub name: &'static str,
    value: Number,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Number {
    Fixed(i64),
    /// So many more than the extent.
    Extent(i64),
    /// So many more than the extent's negative.
    Negative(i64),
}

const fn whole(name: &'static str, value: Number) -> Whole {
    Whole { name, value }
}

/// Of an operand whose type is too small, what is left of them.
const WHOLES: &[Whole] = &[
    whole("0", Number::Fixed(0)),
    whole("1", Number::Fixed(1)),
    whole("-1", Number::Fixed(-1)),
    whole("n", Number::Extent(0)),
    whole("-n-1", Number::Negative(-1)),
    whole("2^20", Number::Fixed(1 << 20)),
    whole("2^31-1", Number::Fixed((1 << 31) - 1)),
    whole("2^31", Number::Fixed(1 << 31)),
    whole("-2^31", Number::Fixed(-(1 << 31))),
    whole("2^40", Number::Fixed(1 << 40)),
    whole("2^62", Number::Fixed(1 << 62)),
    whole("min", Number::Fixed(i64::MIN)),
    whole("max", Number::Fixed(i64::MAX)),
];

impl Whole {
    fn of(self, extent: i64) -> i64 {
        match self.value {
            Number::Fixed(value) => value,
            Number::Extent(more) => extent.saturating_add(more),
            Number::Negative(more) => extent.saturating_neg().saturating_add(more),
        }
    }
}

/// A floating-point number that arithmetic treats apart.
pub(super) const FLOATS: &[(&str, f64)] = &[
    ("nan", f64::NAN),
    ("inf", f64::INFINITY),
    ("-inf", f64::NEG_INFINITY),
    ("-0", -0.0),
    ("0", 0.0),
    ("subnormal", 1e-40),
    ("largest", f32::MAX as f64),
    ("-largest", f32::MIN as f64),
];

/// Elements that are changed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Spot {
    All,
    First,
    Last,
}

const SPOTS: [Spot; 3] = [Spot::All, Spot::First, Spot::Last];

/// One change.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Mutation {
    /// None: the seed itself.
    Seed,
    /// Elements of a whole-number input.
    Whole {
        input: usize,
        spot: Spot,
        value: Whole,
        constant: bool,
    },
    /// Elements of a floating-point input.
    Float {
        input: usize,
        spot: Spot,
        value: usize,
    },
    /// Every special number in turn over a floating-point input.
    Floats {
        input: usize,
    },
    /// An input with one extent of zero, or all of them.
    Zero {
        input: usize,
        axis: Option<usize>,
        constant: bool,
    },
    /// Every input with a first extent of zero.
    ZeroAll,
    /// An input of another rank: a scalar, or with an axis more in front.
    Scalar {
        input: usize,
    },
    Deeper {
        input: usize,
    },
    /// An input twice as long along an axis.
    Longer {
        input: usize,
        axis: usize,
    },
    /// A constant that claims extents without content.
    Claim {
        input: usize,
        dims: &'static [i64],
    },
    /// An input of another element type, with its elements zero.
    Dtype {
        input: usize,
        dtype: i64,
    },
    /// An operand that is left empty.
    AbsentInput(usize),
    AbsentOutput(usize),
    /// The first so many operands alone.
    Inputs(usize),
    Outputs(usize),
    /// Operands more than the op has: the first one again.
    MoreInputs(usize),
    MoreOutputs(usize),
    /// An attribute that is not there, or is another.
    NoAttribute(String),
    AttributeInt {
        name: String,
        value: Whole,
    },
    AttributeInts {
        name: String,
        spot: Spot,
        value: Whole,
    },
    /// A list of so many ones.
    AttributeLength {
        name: String,
        n: usize,
    },
    AttributeFloat {
        name: String,
        value: usize,
    },
    AttributeText {
        name: String,
        value: &'static str,
    },
    /// An attribute of another type.
    AttributeType {
        name: String,
        to: i64,
    },
}

/// Texts that no attribute may have.
const TEXTS: &[&str] = &["", "no such thing", "\u{1b}[31m\u{0}"];

/// Extents that no content comes with.
const CLAIMS: &[&[i64]] =
    &[&[1 << 40], &[1 << 31, 1 << 31], &[1 << 62, 4], &[i64::MAX], &[-1], &[0, 1 << 62]];

const OTHER_TYPES: &[i64] = &[1, 3, 6, 7, 9, 10, 11];

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let constant = |constant: &bool| if *constant { " constant" } else { "" };
        match self {
            Self::Seed => write!(f, "the seed"),
            Self::Whole { input, spot, value, constant: c } => {
                write!(f, "input {input} {spot:?}={}{}", value.name, constant(c))
            }
            Self::Float { input, spot, value } => write!(f, "input {input} {spot:?}={}", FLOATS[*value].0),
            Self::Floats { input } => write!(f, "input {input} of special numbers"),
            Self::Zero { input, axis: Some(axis), constant: c } => {
                write!(f, "input {input} axis {axis} of 0{}", constant(c))
            }
            Self::Zero { input, axis: None, constant: c } => {
                write!(f, "input {input} axes of 0{}", constant(c))
            }
            Self::ZeroAll => write!(f, "all inputs axis 0 of 0"),
            Self::Scalar { input } => write!(f, "input {input} as a scalar"),
            Self::Deeper { input } => write!(f, "input {input} with an extra axis"),
            Self::Longer { input, axis } => write!(f, "input {input} axis {axis} twice as long"),
            Self::Claim { input, dims } => write!(f, "input {input} as a constant that claims {dims:?}"),
            Self::Dtype { input, dtype } => write!(f, "input {input} of element type {dtype}"),
            Self::AbsentInput(i) => write!(f, "operand {i} absent"),
            Self::AbsentOutput(i) => write!(f, "result {i} absent"),
            Self::Inputs(n) => write!(f, "{n} operands"),
            Self::Outputs(n) => write!(f, "{n} results"),
            Self::MoreInputs(n) => write!(f, "{n} extra operands"),
            Self::MoreOutputs(n) => write!(f, "{n} extra results"),
            Self::NoAttribute(name) => write!(f, "no {name}"),
            Self::AttributeInt { name, value } => write!(f, "{name}={}", value.name),
            Self::AttributeInts { name, spot, value } => write!(f, "{name} {spot:?}={}", value.name),
            Self::AttributeLength { name, n } => write!(f, "{name} of {n}"),
            Self::AttributeFloat { name, value } => write!(f, "{name}={}", FLOATS[*value].0),
            Self::AttributeText { name, value } => write!(f, "{name}={value:?}"),
            Self::AttributeType { name, to } => {
                let to = TYPES.iter().find(|(ty, _)| ty == to).map(|(_, word)| *word).unwrap_or_default();
                write!(f, "{name} of the type {to}")
            }
        }
    }
}

impl Mutation {
    /// Returns whether an attribute is missing, of another type, or a list of another length.
    pub fn is_form_of_attribute(&self) -> bool {
        self.is_type_of_attribute() || matches!(self, Self::NoAttribute(_) | Self::AttributeLength { .. })
    }

    /// Returns whether an attribute is of another type.
    pub fn is_type_of_attribute(&self) -> bool {
        matches!(self, Self::AttributeType { .. })
    }

    /// Returns the same change to an input, of one to a constant.
    pub fn given_late(&self) -> Option<Self> {
        match *self {
            Self::Whole { input, spot, value, constant: true } => {
                Some(Self::Whole { input, spot, value, constant: false })
            }
            Self::Zero { input, axis, constant: true } => Some(Self::Zero { input, axis, constant: false }),
            _ => None,
        }
    }

    /// Returns whether rounding decides which results overflow.
    pub fn is_large(&self) -> bool {
        match self {
            Self::Float { value, .. } | Self::AttributeFloat { value, .. } => {
                FLOATS[*value].0.contains("largest")
            }
            Self::Floats { .. } => true,
            _ => false,
        }
    }
}

/// Attributes of ops as node tests have them: name to AttributeProto's type, by op.
pub(super) type Attributes = BTreeMap<String, BTreeMap<String, i64>>;

/// Adds the attributes of a seed's node.
pub(super) fn learn(attributes: &mut Attributes, seed: &Seed) {
    let known = attributes.entry(op(seed)).or_default();
    for attribute in seed.node.all_bytes(field::NODE_ATTRIBUTE).filter_map(Message::parse) {
        known.insert(
            attribute.text(field::ATTRIBUTE_NAME).to_owned(),
            attribute.int(field::ATTRIBUTE_TYPE).unwrap_or_default(),
        );
    }
}

/// Returns the op of the node that is changed.
pub(super) fn op(seed: &Seed) -> String {
    let (domain, op) = (seed.node.text(field::NODE_DOMAIN), seed.node.text(field::NODE_OP));
    if domain.is_empty() { op.to_owned() } else { format!("{domain}.{op}") }
}

/// Returns every change of a seed.
pub(super) fn mutations(seed: &Seed, attributes: &Attributes) -> Vec<Mutation> {
    let mut list = vec![Mutation::Seed];
    for (input, array) in seed.arrays.iter().enumerate() {
        if let Some(array) = array {
            of_input(&mut list, input, array);
        }
    }
    if seed.arrays.len() > 1 {
        list.push(Mutation::ZeroAll);
    }
    let (n_inputs, n_outputs) = (seed.node_inputs().len(), seed.node_outputs().len());
    list.extend((0..n_inputs).map(Mutation::AbsentInput));
    list.extend((0..n_inputs).map(Mutation::Inputs));
    list.extend((0..n_outputs).map(Mutation::AbsentOutput));
    list.extend((0..n_outputs).map(Mutation::Outputs));
    list.extend([1, 2, 8].map(Mutation::MoreInputs));
    list.extend([1, 2, 8].map(Mutation::MoreOutputs));
    for (name, ty) in attributes.get(&op(seed)).into_iter().flatten() {
        of_attribute(&mut list, name, *ty);
    }
    list
}

fn of_input(list: &mut Vec<Mutation>, input: usize, array: &Array) {
    let spots = || SPOTS.into_iter().take(if array.dims.iter().product::<i64>() > 1 { 3 } else { 1 });
    if is_whole(array.dtype) {
        for spot in spots() {
            for &value in WHOLES {
                list.extend([false, true].map(|constant| Mutation::Whole { input, spot, value, constant }));
            }
        }
    } else if is_float(array.dtype) {
        for spot in spots() {
            list.extend((0..FLOATS.len()).map(|value| Mutation::Float { input, spot, value }));
        }
        list.push(Mutation::Floats { input });
    }
    for constant in [false, true] {
        list.extend((0..array.dims.len()).map(|axis| Mutation::Zero { input, axis: Some(axis), constant }));
        if array.dims.len() > 1 {
            list.push(Mutation::Zero { input, axis: None, constant });
        }
    }
    if !array.dims.is_empty() {
        list.push(Mutation::Scalar { input });
    }
    list.push(Mutation::Deeper { input });
    list.extend((0..array.dims.len()).map(|axis| Mutation::Longer { input, axis }));
    list.extend(CLAIMS.iter().map(|dims| Mutation::Claim { input, dims }));
    let others = OTHER_TYPES.iter().filter(|dtype| **dtype != array.dtype);
    list.extend(others.map(|&dtype| Mutation::Dtype { input, dtype }));
}

// AttributeProto.AttributeType.
const FLOAT: i64 = 1;
const INT: i64 = 2;
const STRING: i64 = 3;
const FLOATS_TYPE: i64 = 6;
const INTS: i64 = 7;

/// Types that replace an attribute's own.
const TYPES: &[(i64, &str)] = &[(FLOAT, "float"), (INT, "int"), (STRING, "string"), (INTS, "ints")];

fn of_attribute(list: &mut Vec<Mutation>, name: &str, ty: i64) {
    let name = || name.to_owned();
    list.push(Mutation::NoAttribute(name()));
    let others = TYPES.iter().filter(|(other, _)| *other != ty);
    list.extend(others.map(|&(to, _)| Mutation::AttributeType { name: name(), to }));
    match ty {
        INT => {
            list.extend(WHOLES.iter().map(|&value| Mutation::AttributeInt { name: name(), value }));
        }
        INTS => {
            for spot in SPOTS {
                let all = WHOLES.iter();
                list.extend(all.map(|&value| Mutation::AttributeInts { name: name(), spot, value }));
            }
            list.extend([0, 1, 9, 100].map(|n| Mutation::AttributeLength { name: name(), n }));
        }
        FLOAT => {
            list.extend((0..FLOATS.len()).map(|value| Mutation::AttributeFloat { name: name(), value }));
        }
        STRING => {
            list.extend(TEXTS.iter().map(|value| Mutation::AttributeText { name: name(), value }));
        }
        FLOATS_TYPE => list.extend([0, 1, 100].map(|n| Mutation::AttributeLength { name: name(), n })),
        _ => {}
    }
}

fn is_whole(dtype: i64) -> bool {
    matches!(dtype, 2..=7 | 9 | 12 | 13)
}

fn is_float(dtype: i64) -> bool {
    matches!(dtype, 1 | 10 | 11 | 16)
}

/// Returns a whole number as an element; larger ones wrap.
fn whole_bytes(value: i64, dtype: i64) -> Vec<u8> {
    if dtype == 9 {
        return vec![u8::from(value != 0)];
    }
    let n = usize::try_from(bits(dtype).unwrap_or(8) / 8).unwrap_or(1);
    // The largest and smallest of a smaller type, where the number is beyond it.
    let limit = match n {
        8 => value,
        n => value.clamp(-(1 << (8 * n - 1)), (1 << (8 * n - 1)) - 1),
    };
    limit.to_le_bytes()[..n].to_vec()
}

fn float_bytes(value: f64, dtype: i64) -> Vec<u8> {
    // The largest number of each type, and one below its smallest normal.
    let of = |largest: f64, subnormal: f64| match value {
        v if v.abs() == f64::from(f32::MAX) => largest.copysign(v),
        1e-40 => subnormal,
        v => v,
    };
    match dtype {
        1 => (value as f32).to_le_bytes().to_vec(),
        10 => f16::from_f64(of(65504.0, 1e-6)).to_le_bytes().to_vec(),
        11 => of(f64::MAX, 1e-310).to_le_bytes().to_vec(),
        _ => bf16::from_f64(of(f64::from(bf16::MAX), 1e-40)).to_le_bytes().to_vec(),
    }
}

fn put(array: &mut Array, spot: Spot, element: &[u8]) {
    let size = element.len();
    let n = array.raw.len() / size;
    let range = match spot {
        Spot::All => 0..n,
        Spot::First => 0..n.min(1),
        Spot::Last => n.saturating_sub(1)..n,
    };
    for at in range {
        array.raw[at * size..][..size].copy_from_slice(element);
    }
}

/// Makes a seed hostile; None where the change does not apply.
pub(super) fn apply(seed: &Seed, mutation: &Mutation) -> Option<HostileModel> {
    let array = |input: usize| seed.arrays.get(input)?.clone();
    // The range of an index into another operand: that operand's largest extent.
    let extent =
        seed.arrays.first().and_then(Option::as_ref).and_then(|array| array.dims.iter().max().copied());
    let extent = extent.unwrap_or(1);
    match mutation {
        Mutation::Seed => Some(seed.unchanged()),
        Mutation::Whole { input, spot, value, constant } => {
            let mut array = array(*input)?;
            let element = whole_bytes(value.of(extent), array.dtype);
            put(&mut array, *spot, &element);
            Some(seed.with_array(*input, &array, *constant))
        }
        Mutation::Float { input, spot, value } => {
            let mut array = array(*input)?;
            let element = float_bytes(FLOATS[*value].1, array.dtype);
            put(&mut array, *spot, &element);
            Some(seed.with_array(*input, &array, false))
        }
        Mutation::Floats { input } => {
            let mut array = array(*input)?;
            let size = usize::try_from(bits(array.dtype)? / 8).ok()?;
            for (i, element) in array.raw.chunks_exact_mut(size).enumerate() {
                // Every second one stays.
                if i % 2 == 0 {
                    element.copy_from_slice(&float_bytes(FLOATS[i / 2 % FLOATS.len()].1, array.dtype));
                }
            }
            Some(seed.with_array(*input, &array, false))
        }
        Mutation::Zero { input, axis, constant } => {
            let mut array = array(*input)?;
            match axis {
                Some(axis) => array.dims[*axis] = 0,
                None => array.dims.fill(0),
            }
            array.raw.clear();
            Some(seed.with_array(*input, &array, *constant))
        }
        Mutation::ZeroAll => {
            let mut changed = seed.clone();
            for input in 0..seed.arrays.len() {
                let Some(mut array) = array(input) else { continue };
                if array.dims.is_empty() {
                    continue;
                }
                array.dims[0] = 0;
                array.raw.clear();
                let hostile = changed.with_array(input, &array, false);
                changed.model = Message::parse(&hostile.model)?;
                changed.inputs = hostile.inputs;
            }
            Some(changed.unchanged())
        }
        Mutation::Scalar { input } => {
            let mut array = array(*input)?;
            array.dims.clear();
            array.raw.resize(usize::try_from(bits(array.dtype)?).ok()?.div_ceil(8), 0);
            Some(seed.with_array(*input, &array, false))
        }
        Mutation::Deeper { input } => {
            let mut array = array(*input)?;
            array.dims.insert(0, 1);
            Some(seed.with_array(*input, &array, false))
        }
        Mutation::Longer { input, axis } => {
            let mut array = array(*input)?;
            array.dims[*axis] *= 2;
            array.raw.extend_from_within(..);
            Some(seed.with_array(*input, &array, false))
        }
        Mutation::Claim { input, dims } => {
            let array = Array { dims: dims.to_vec(), raw: Vec::new(), ..array(*input)? };
            Some(seed.with_array(*input, &array, true))
        }
        Mutation::Dtype { input, dtype } => {
            let mut array = array(*input)?;
            let n = usize::try_from(array.dims.iter().product::<i64>() * bits(*dtype)?).ok()?.div_ceil(8);
            (array.dtype, array.raw) = (*dtype, vec![0; n]);
            Some(seed.with_array(*input, &array, false))
        }
        Mutation::AbsentInput(i) => Some(with_operands(seed, field::NODE_INPUT, |names| names[*i].clear())),
        Mutation::Inputs(n) => Some(with_operands(seed, field::NODE_INPUT, |names| names.truncate(*n))),
        Mutation::MoreInputs(n) => Some(with_operands(seed, field::NODE_INPUT, |names| {
            let first = names.first().cloned().unwrap_or_default();
            names.extend(std::iter::repeat_n(first, *n));
        })),
        Mutation::AbsentOutput(i) => Some(with_operands(seed, field::NODE_OUTPUT, |names| names[*i].clear())),
        Mutation::Outputs(n) => Some(with_operands(seed, field::NODE_OUTPUT, |names| names.truncate(*n))),
        Mutation::MoreOutputs(n) => Some(with_operands(seed, field::NODE_OUTPUT, |names| {
            names.extend((0..*n).map(|i| format!("result_too_many_{i}")));
        })),
        _ => attribute(seed, mutation),
    }
}

/// Returns the node with other operands; outputs of the graph that nothing makes then are left out.
fn with_operands(seed: &Seed, number: u32, change: impl FnOnce(&mut Vec<String>)) -> HostileModel {
    let before = if number == field::NODE_INPUT { seed.node_inputs() } else { seed.node_outputs() };
    let mut after = before.clone();
    change(&mut after);
    let mut node = seed.node.clone();
    node.replace(number, after.iter().map(|name| text(name)));
    seed.with(&node, |graph| {
        forget_shapes(graph);
        if number == field::NODE_OUTPUT {
            for gone in before.iter().filter(|name| !after.contains(name)) {
                remove_named(graph, field::GRAPH_OUTPUT, gone);
            }
        }
    })
}

/// Changes of attributes.
fn attribute(seed: &Seed, mutation: &Mutation) -> Option<HostileModel> {
    let (name, number, wires, ty) = match mutation {
        Mutation::NoAttribute(name) => (name, 0, Vec::new(), 0),
        Mutation::AttributeInt { name, value } => {
            (name, field::ATTRIBUTE_INT, vec![int(value.of(extent_of(seed)))], INT)
        }
        Mutation::AttributeInts { name, spot, value } => {
            let mut ints = old(seed, name).map(|old| old.ints(field::ATTRIBUTE_INTS)).unwrap_or_default();
            if ints.is_empty() {
                ints = vec![1, 1];
            }
            let (value, last) = (value.of(extent_of(seed)), ints.len() - 1);
            match spot {
                Spot::All => ints.fill(value),
                Spot::First => ints[0] = value,
                Spot::Last => ints[last] = value,
            }
            (name, field::ATTRIBUTE_INTS, ints.into_iter().map(int).collect(), INTS)
        }
        Mutation::AttributeLength { name, n } => {
            let ty = old(seed, name).and_then(|old| old.int(field::ATTRIBUTE_TYPE)).unwrap_or(INTS);
            if ty == FLOATS_TYPE {
                let ones = std::iter::repeat_n(Wire::Fixed32(1f32.to_le_bytes()), *n);
                (name, field::ATTRIBUTE_FLOATS, ones.collect(), FLOATS_TYPE)
            } else {
                (name, field::ATTRIBUTE_INTS, std::iter::repeat_n(int(1), *n).collect(), INTS)
            }
        }
        Mutation::AttributeFloat { name, value } => {
            let bytes = (FLOATS[*value].1 as f32).to_le_bytes();
            (name, field::ATTRIBUTE_FLOAT, vec![Wire::Fixed32(bytes)], FLOAT)
        }
        Mutation::AttributeText { name, value } => (name, field::ATTRIBUTE_STRING, vec![text(value)], STRING),
        Mutation::AttributeType { name, to } => {
            let (number, wires) = match *to {
                FLOAT => (field::ATTRIBUTE_FLOAT, vec![Wire::Fixed32(1f32.to_le_bytes())]),
                INT => (field::ATTRIBUTE_INT, vec![int(1)]),
                STRING => (field::ATTRIBUTE_STRING, vec![text("1")]),
                _ => (field::ATTRIBUTE_INTS, vec![int(1), int(1)]),
            };
            (name, number, wires, *to)
        }
        _ => return None,
    };
    let mut node = seed.node.clone();
    node.fields.retain(|(found, wire)| {
        let Wire::Bytes(bytes) = wire else { return true };
        *found != field::NODE_ATTRIBUTE
            || Message::parse(bytes).is_none_or(|attribute| attribute.text(field::ATTRIBUTE_NAME) != name)
    });
    if !matches!(mutation, Mutation::NoAttribute(_)) {
        let mut new = Message::default();
        new.push(field::ATTRIBUTE_NAME, text(name));
        new.fields.extend(wires.into_iter().map(|wire| (number, wire)));
        new.push(field::ATTRIBUTE_TYPE, int(ty));
        node.push(field::NODE_ATTRIBUTE, Wire::Bytes(new.bytes()));
    }
    Some(seed.with(&node, forget_shapes))
}

/// Returns an attribute of a seed's node.
fn old(seed: &Seed, name: &str) -> Option<Message> {
    let mut all = seed.node.all_bytes(field::NODE_ATTRIBUTE).filter_map(Message::parse);
    all.find(|attribute| attribute.text(field::ATTRIBUTE_NAME) == name)
}

/// Returns the extent that an axis or index counts.
fn extent_of(seed: &Seed) -> i64 {
    seed.arrays.first().and_then(Option::as_ref).map_or(1, |array| array.dims.len() as i64)
}
