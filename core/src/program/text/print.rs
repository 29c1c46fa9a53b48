//! From a program to its text.
//!
//! Printing never fails, so that a broken program can be looked at: values that do not exist or are not
//! defined get a number all the same, and [`super::parse()`] then refuses the text.

use super::{MAGIC, VERSION, is_bare_value, is_bare_word, is_reserved};
use crate::program::{AttrValue, Node, Op, Program, Region, ValueId};
use crate::tensor::{
    BF16, BOOL, DType, Dim, F16, F32, F64, I8, I16, I32, I64, Tensor, TensorType, U8, U16, U32, U64,
    dtype_from_name, dtype_name,
};
use half::{bf16, f16};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Constants of up to so many elements are lists.
const LISTED_MAX: usize = 32;
/// The same limit for output that people read to see shapes and axes.
const SHOWN_MAX: usize = 8;
/// Bytes per line of larger ones.
const HEX_LINE: usize = 64;

/// The whole program; [`super::parse()`] reads it.
pub fn print(program: &Program) -> String {
    Printer::new(program, false).run()
}

/// The program without the content of large constants, for people.
pub fn print_elided(program: &Program) -> String {
    Printer::new(program, true).run()
}

struct Printer<'a> {
    program: &'a Program,
    elided: bool,
    /// Number of each value that the program refers to, in the order of the text.
    numbers: HashMap<ValueId, usize>,
    /// Number of those values that have a name.
    n_named: HashMap<Arc<str>, usize>,
    /// Constants that the outermost region defines before its i-th node; the last ones before its outputs.
    constants: Vec<Vec<ValueId>>,
    out: String,
}

impl<'a> Printer<'a> {
    fn new(program: &'a Program, elided: bool) -> Self {
        let mut printer = Self {
            program,
            elided,
            numbers: HashMap::new(),
            n_named: HashMap::new(),
            constants: Vec::new(),
            out: String::new(),
        };
        printer.number_all();
        printer
    }

    fn run(mut self) -> String {
        // Writing to a string cannot fail.
        let _ = self.write_program();
        self.out
    }

    /// Numbers values in the order in which the text defines them.
    fn number_all(&mut self) {
        let main = &self.program.main;
        for &id in &main.inputs {
            self.number(id);
        }
        for node in &main.nodes {
            let mut constants = Vec::new();
            self.number_constants(node, &mut constants);
            self.constants.push(constants);
            self.number_node(node);
        }
        let mut constants = Vec::new();
        for &id in &main.outputs {
            self.number_constant(id, &mut constants);
        }
        self.constants.push(constants);
    }

    fn number_constants(&mut self, node: &Node, new: &mut Vec<ValueId>) {
        for &id in node.inputs.iter().flatten() {
            self.number_constant(id, new);
        }
        for (_, region) in &node.regions {
            for node in &region.nodes {
                self.number_constants(node, new);
            }
            for &id in &region.outputs {
                self.number_constant(id, new);
            }
        }
    }

    fn number_constant(&mut self, id: ValueId, new: &mut Vec<ValueId>) {
        let is_constant = self.program.values.get(id.idx()).is_some_and(|value| value.constant.is_some());
        if is_constant && !self.numbers.contains_key(&id) {
            self.number(id);
            new.push(id);
        }
    }

    fn number_node(&mut self, node: &Node) {
        for &id in node.outputs.iter().flatten() {
            self.number(id);
        }
        for (_, region) in &node.regions {
            for &id in &region.inputs {
                self.number(id);
            }
            for node in &region.nodes {
                self.number_node(node);
            }
        }
    }

    fn number(&mut self, id: ValueId) {
        let next = self.numbers.len();
        // A value that is defined twice, in a broken program, keeps its first number.
        if let Entry::Vacant(number) = self.numbers.entry(id) {
            number.insert(next);
            if let Some(value) = self.program.values.get(id.idx()) {
                *self.n_named.entry(value.name.clone()).or_default() += 1;
            }
        }
    }

    fn write_program(&mut self) -> fmt::Result {
        let program = self.program;
        write!(self.out, "{MAGIC} {VERSION}\n\nprogram {}", Quoted(&program.name))?;
        self.write_inputs(&program.main)?;
        self.out.push_str(" {\n");
        for (i, node) in program.main.nodes.iter().enumerate() {
            self.write_constants(i)?;
            self.write_node(node, 1)?;
        }
        self.write_constants(program.main.nodes.len())?;
        self.write_return(&program.main, 1)?;
        self.out.push_str("}\n");
        Ok(())
    }

    fn write_constants(&mut self, i: usize) -> fmt::Result {
        for id in std::mem::take(&mut self.constants[i]) {
            let Some(tensor) = self.program.constant(id) else {
                continue;
            };
            self.out.push_str("  ");
            self.write_value(id)?;
            self.out.push_str(" = const ");
            write_tensor(&mut self.out, tensor, self.elided)?;
            self.out.push('\n');
        }
        Ok(())
    }

    fn write_inputs(&mut self, region: &Region) -> fmt::Result {
        self.out.push('(');
        for (i, &id) in region.inputs.iter().enumerate() {
            self.write_comma(i);
            self.write_definition(id)?;
        }
        self.out.push(')');
        Ok(())
    }

    fn write_return(&mut self, region: &Region, depth: usize) -> fmt::Result {
        self.write_indent(depth);
        self.out.push_str("return");
        for (i, &id) in region.outputs.iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { " " });
            self.write_value(id)?;
        }
        self.out.push('\n');
        Ok(())
    }

    fn write_node(&mut self, node: &Node, depth: usize) -> fmt::Result {
        self.write_indent(depth);
        for (i, output) in node.outputs.iter().enumerate() {
            self.write_comma(i);
            match output {
                Some(id) => self.write_definition(*id)?,
                None => self.out.push('_'),
            }
        }
        if !node.outputs.is_empty() {
            self.out.push_str(" = ");
        }
        write_op(&mut self.out, &node.op)?;
        self.out.push('(');
        for (i, input) in node.inputs.iter().enumerate() {
            self.write_comma(i);
            match input {
                Some(id) => self.write_value(*id)?,
                None => self.out.push('_'),
            }
        }
        self.out.push(')');
        if !node.name.is_empty() {
            write!(self.out, " as {}", Quoted(&node.name))?;
        }
        self.write_attrs(node)?;
        for (name, region) in &node.regions {
            self.write_region(name, region, depth)?;
        }
        self.out.push('\n');
        Ok(())
    }

    fn write_attrs(&mut self, node: &Node) -> fmt::Result {
        if node.attrs.is_empty() {
            return Ok(());
        }
        self.out.push_str(" {");
        for (i, (name, value)) in node.attrs.iter().enumerate() {
            self.write_comma(i);
            write!(self.out, "{} = ", Word(name))?;
            write_attr(&mut self.out, value, self.elided)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn write_region(&mut self, name: &str, region: &Region, depth: usize) -> fmt::Result {
        write!(self.out, " {}", Word(name))?;
        self.write_inputs(region)?;
        self.out.push_str(" {\n");
        for node in &region.nodes {
            self.write_node(node, depth + 1)?;
        }
        self.write_return(region, depth + 1)?;
        self.write_indent(depth);
        self.out.push('}');
        Ok(())
    }

    fn write_definition(&mut self, id: ValueId) -> fmt::Result {
        self.write_value(id)?;
        if let Some(ty) = self.program.values.get(id.idx()).and_then(|v| v.ty.clone()) {
            self.out.push_str(": ");
            write_type(&mut self.out, &ty)?;
        }
        Ok(())
    }

    fn write_value(&mut self, id: ValueId) -> fmt::Result {
        let name = match self.program.values.get(id.idx()) {
            Some(value) => &*value.name,
            None => return write!(self.out, "%missing#{}", id.0),
        };
        let Some(number) = self.numbers.get(&id) else {
            return write!(self.out, "%undefined#{}", id.0);
        };
        if name.is_empty() {
            return write!(self.out, "%{number}");
        }
        if is_bare_value(name) {
            write!(self.out, "%{name}")?;
        } else {
            write!(self.out, "%{}", Quoted(name))?;
        }
        if self.n_named.get(name).is_some_and(|&n| n > 1) {
            write!(self.out, "#{number}")?;
        }
        Ok(())
    }

    fn write_comma(&mut self, i: usize) {
        if i > 0 {
            self.out.push_str(", ");
        }
    }

    fn write_indent(&mut self, depth: usize) {
        for _ in 0..depth {
            self.out.push_str("  ");
        }
    }
}

fn write_op(out: &mut String, op: &Op) -> fmt::Result {
    let bare = |part: &str| part.split('.').all(is_bare_word);
    let plain_name = is_bare_word(&op.name) && !is_reserved(&op.name);
    match (op.domain.is_empty(), plain_name && bare(&op.domain)) {
        (true, _) if plain_name => write!(out, "{}", op.name)?,
        (true, _) => write!(out, "{}", Quoted(&op.name))?,
        (false, true) => write!(out, "{}.{}", op.domain, op.name)?,
        (false, false) => write!(out, "{}.{}", Quoted(&op.domain), Quoted(&op.name))?,
    }
    write!(out, "@{}", op.version)
}

fn write_type(out: &mut String, ty: &TensorType) -> fmt::Result {
    write_dtype(out, ty.dtype)?;
    let Some(shape) = &ty.shape else {
        out.push_str("[..]");
        return Ok(());
    };
    out.push('[');
    for (i, dim) in shape.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        match dim {
            Dim::Known(extent) => write!(out, "{extent}")?,
            Dim::Unknown(name) if name.is_empty() => out.push('?'),
            Dim::Unknown(name) => write!(out, "{}", Word(name))?,
        }
    }
    out.push(']');
    Ok(())
}

fn write_dtype(out: &mut String, dtype: DType) -> fmt::Result {
    let name = dtype_name(dtype);
    if dtype_from_name(&name) == Some(dtype) {
        out.push_str(&name);
        return Ok(());
    }
    write!(out, "dtype({},{},{})", dtype.code, dtype.bits, dtype.lanes)
}

fn write_attr(out: &mut String, value: &AttrValue, elided: bool) -> fmt::Result {
    match value {
        AttrValue::Int(value) => write!(out, "{value}"),
        AttrValue::Float(value) => write!(out, "{}", Single(*value)),
        AttrValue::String(value) => write!(out, "{}", Quoted(value)),
        AttrValue::Ints(values) => write_list(out, "ints ", values.iter()),
        AttrValue::Floats(values) => write_list(out, "floats ", values.iter().map(|v| Single(*v))),
        AttrValue::Strings(values) => write_list(out, "strings ", values.iter().map(|v| Quoted(v))),
        AttrValue::Tensor(tensor) => write_tensor(out, tensor, elided),
    }
}

/// Writes a list; `label` names its content if it is empty.
fn write_list<T: fmt::Display>(
    out: &mut String,
    label: &str,
    values: impl ExactSizeIterator<Item = T>,
) -> fmt::Result {
    if values.len() == 0 {
        out.push_str(label);
    }
    out.push('[');
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write!(out, "{value}")?;
    }
    out.push(']');
    Ok(())
}

fn write_tensor(out: &mut String, tensor: &Tensor, elided: bool) -> fmt::Result {
    write_type(out, &tensor.tensor_type())?;
    out.push(' ');
    if elided && tensor.n_elements() > SHOWN_MAX {
        out.push_str("...");
        Ok(())
    } else if tensor.n_elements() <= LISTED_MAX && is_listed(tensor) {
        write_elements(out, tensor)
    } else {
        write_hex(out, tensor.bytes());
        Ok(())
    }
}

/// Returns whether the elements can be written as numbers: a byte other than 0 and 1 is no `bool`, and small floats and
/// elements that share bytes are written as they are stored.
fn is_listed(tensor: &Tensor) -> bool {
    match tensor.dtype() {
        BOOL => tensor.bytes().iter().all(|&byte| byte <= 1),
        F32 | F64 | F16 | BF16 | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 => true,
        _ => false,
    }
}

fn write_elements(out: &mut String, tensor: &Tensor) -> fmt::Result {
    /// Writes `$bytes` as elements of a type, each shown by `$show`.
    macro_rules! list {
        ($type:ty, $show:expr) => {{
            let elements: &[$type] = bytemuck::cast_slice(tensor.bytes());
            write_list(out, "", elements.iter().map(|&element| $show(element)))
        }};
    }
    match tensor.dtype() {
        F32 => list!(f32, Single),
        F64 => list!(f64, Double),
        F16 => list!(f16, Half),
        BF16 => list!(bf16, Brain),
        I8 => list!(i8, |x| x),
        I16 => list!(i16, |x| x),
        I32 => list!(i32, |x| x),
        I64 => list!(i64, |x| x),
        U8 => list!(u8, |x| x),
        U16 => list!(u16, |x| x),
        U32 => list!(u32, |x| x),
        U64 => list!(u64, |x| x),
        _ => list!(u8, |x| x != 0),
    }
}

fn write_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let long = bytes.len() > HEX_LINE;
    out.reserve(bytes.len() * 2 + bytes.len() / HEX_LINE + 8);
    out.push_str("hex{");
    for line in bytes.chunks(HEX_LINE) {
        if long {
            out.push('\n');
        }
        for &byte in line {
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    out.push_str(if long { "\n  }" } else { "}" });
}

/// A text in quotes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// A word, in quotes if it needs them.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_bare_word(self.0) && !is_reserved(self.0) {
            f.write_str(self.0)
        } else {
            write!(f, "{}", Quoted(self.0))
        }
    }
}

/// Makes a type that shows a floating-point number so that reading it gives the same bits: the shortest
/// digits that do, and NaNs other than the usual one by their bits.
macro_rules! exact {
    ($name:ident, $type:ty, $usual:expr, $shown:expr) => {
        struct $name($type);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if !self.0.is_nan() {
                    write!(f, "{:?}", $shown(self.0))
                } else if self.0.to_bits() == $usual {
                    f.write_str("nan")
                } else {
                    write!(f, "nan({:#x})", self.0.to_bits())
                }
            }
        }
    };
}

exact!(Single, f32, 0x7fc0_0000, |x: f32| x);
exact!(Double, f64, 0x7ff8_0000_0000_0000, |x: f64| x);
exact!(Half, f16, 0x7e00, f32::from);
exact!(Brain, bf16, 0x7fc0, f32::from);
