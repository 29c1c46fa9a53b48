//! The text of a module: types, literals, names of values, and what has been counted while it was written.

use super::node::Node;
use super::primitive::Fold;
use crate::device::element_of;
use crate::element::ElementType;
use devbay_plugin_api::abi::DType;
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::{self, Error, GraphView, Result, TensorView};
use std::fmt::Write;

/// Type of a value of the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Type {
    pub(super) element: ElementType,
    pub(super) dims: Vec<i64>,
}

impl Type {
    pub(super) fn new(element: ElementType, dims: &[i64]) -> Self {
        Self { element, dims: dims.to_vec() }
    }

    /// The type of a tensor of the graph.
    ///
    /// # Errors
    /// Unsupported for an element type that PJRT's devices are not given, and for extents that are not known.
    pub(super) fn of(tensor: &TensorView<'_>) -> Result<Self> {
        if tensor.is_absent() {
            return Err(Error::invalid("an operand without a type"));
        }
        if tensor.shape().iter().any(|&extent| extent < 0) {
            return Err(Error::unsupported("extents that are not known before the program is compiled"));
        }
        Ok(Self { element: element_of(tensor.dtype())?, dims: tensor.shape().to_vec() })
    }

    pub(super) fn rank(&self) -> usize {
        self.dims.len()
    }

    pub(super) fn n_elements(&self) -> i64 {
        self.dims.iter().product()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.n_elements() as u64 * self.element.size_bytes().unwrap_or(1) as u64
    }

    pub(super) fn is_float(&self) -> bool {
        use ElementType as E;
        matches!(self.element, E::F16 | E::BF16 | E::F32 | E::F64)
    }

    pub(super) fn is_unsigned(&self) -> bool {
        use ElementType as E;
        matches!(self.element, E::U8 | E::U16 | E::U32 | E::U64)
    }

    pub(super) fn is_bool(&self) -> bool {
        self.element == ElementType::PRED
    }
}

/// `tensor<2x3xf32>`.
impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tensor<")?;
        for dim in &self.dims {
            write!(f, "{dim}x")?;
        }
        write!(f, "{}>", self.element.name().unwrap_or("none"))
    }
}

/// A value of the module.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// Its name without the percent sign.
    name: String,
    pub(super) ty: Type,
}

impl Value {
    pub(super) fn dims(&self) -> &[i64] {
        &self.ty.dims
    }

    pub(super) fn rank(&self) -> usize {
        self.ty.rank()
    }

    pub(super) fn element(&self) -> ElementType {
        self.ty.element
    }
}

/// Writes one module.
pub(super) struct Builder<'g> {
    graph: &'g GraphView<'g>,
    /// Constants larger than this become arguments.
    max_inline_bytes: u64,
    /// True if products keep the precision of their operands.
    pub(super) is_strict: bool,
    /// True if the text is not used: constants are not written then.
    is_trial: bool,
    /// The graph's values that the module has by now.
    values: Vec<Option<Value>>,
    /// The graph's values that are arguments, in order.
    arguments: Vec<u32>,
    body: String,
    n_names: usize,
    /// The first op of a node whose operands do not go together, told when the node ends.
    fault: Option<String>,
    /// Requirements on the data: a scalar of int32 that is not 0 where one is broken, and the words for that.
    checks: Vec<(Value, String)>,
    /// Floating-point operations so far, a multiply-add counted as two.
    pub(super) flops: u64,
}

/// A module, whole.
pub(super) struct Module {
    pub(super) text: String,
    /// Its arguments, as positions in the graph's values.
    pub(super) arguments: Vec<u32>,
    /// Meanings of its last result, beyond the graph's: 0 that the data is as it has to be, `k + 1` what this has at
    /// `k`. None where there is no such result.
    pub(super) checks: Vec<String>,
}

impl<'g> Builder<'g> {
    /// A module whose first arguments are the graph's inputs, constants among them left out.
    ///
    /// # Errors
    /// Unsupported for an input whose type a PJRT device is not given.
    pub(super) fn new(graph: &'g GraphView<'g>, max_inline_bytes: u64, is_strict: bool) -> Result<Self> {
        let mut this = Self {
            graph,
            max_inline_bytes,
            is_strict,
            is_trial: false,
            values: vec![None; graph.values.len()],
            arguments: Vec::new(),
            body: String::new(),
            n_names: 0,
            fault: None,
            checks: Vec::new(),
            flops: 0,
        };
        for &input in &graph.inputs {
            if this.tensor(input)?.constant().is_none() && !this.arguments.contains(&input) {
                this.argument(input)?;
            }
        }
        Ok(this)
    }

    /// A module that is thrown away: every value of the graph is there when it is asked for.
    pub(super) fn trial(graph: &'g GraphView<'g>) -> Self {
        Self {
            graph,
            max_inline_bytes: 0,
            is_strict: true,
            is_trial: true,
            values: Vec::new(),
            arguments: Vec::new(),
            body: String::new(),
            n_names: 0,
            fault: None,
            checks: Vec::new(),
            flops: 0,
        }
    }

    fn tensor(&self, value: u32) -> Result<&'g TensorView<'g>> {
        let known = self.graph.values.get(value as usize);
        known
            .map(|value| &value.tensor)
            .ok_or_else(|| Error::invalid(format!("value {value} of {}", self.graph.values.len())))
    }

    fn argument(&mut self, value: u32) -> Result<Value> {
        let ty = Type::of(self.tensor(value)?)?;
        let made = Value { name: format!("arg{}", self.arguments.len()), ty };
        self.arguments.push(value);
        self.values[value as usize] = Some(made.clone());
        Ok(made)
    }

    /// A value of the graph: what a node made, an argument, or a constant, which is written or becomes an argument when
    /// it is first asked for.
    ///
    /// # Errors
    /// Unsupported for a type that a PJRT device is not given; invalid for a position beyond the graph's values.
    pub(super) fn value(&mut self, value: u32) -> Result<Value> {
        let tensor = self.tensor(value)?;
        if self.is_trial {
            return Ok(Value { name: String::new(), ty: Type::of(tensor)? });
        }
        if let Some(known) = &self.values[value as usize] {
            return Ok(known.clone());
        }
        let ty = Type::of(tensor)?;
        match tensor.constant() {
            Some(bytes) if ty.size_bytes() <= self.max_inline_bytes => {
                let made = self.literal(bytes, &ty)?;
                self.values[value as usize] = Some(made.clone());
                Ok(made)
            }
            // A large constant, or a value of the graph around this one.
            _ => self.argument(value),
        }
    }

    /// Says which of the module's values the results of a node are.
    ///
    /// # Errors
    /// Unsupported if their types are not those that the graph has for them; invalid if an op of the node has operands
    /// that do not go together.
    pub(super) fn bind(&mut self, node: &Node<'_>, results: Vec<Value>) -> Result<()> {
        if let Some(fault) = self.fault.take() {
            return Err(Error::invalid(fault));
        }
        for (at, output) in node.outputs().iter().enumerate() {
            let Some(output) = *output else { continue };
            let expected = Type::of(self.tensor(output)?)?;
            let Some(result) = results.get(at) else {
                return Err(Error::unsupported(format!("result {at} of {}", node.op())));
            };
            if result.ty != expected {
                let found = &result.ty;
                return Err(Error::unsupported(format!(
                    "result {at} of {}: expected {expected}, found {found}",
                    node.op()
                )));
            }
            if !self.is_trial {
                self.values[output as usize] = Some(result.clone());
            }
        }
        Ok(())
    }

    /// The module and its arguments, given the values that go out.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    /// Of the arguments, `donors` are marked: the compiler may plan to reuse their memory for results.
    pub(super) fn finish(mut self, donors: &[u32]) -> Result<Module> {
        let mut outputs: Vec<Value> =
            self.graph.outputs.iter().map(|&output| self.value(output)).collect::<Result<_>>()?;
        let (broken, checks): (Vec<Value>, Vec<String>) =
            std::mem::take(&mut self.checks).into_iter().unzip();
        if !checks.is_empty() {
            outputs.push(self.first_of(&broken)?);
        }
        let names = join(&outputs, |value| format!("%{}", value.name));
        let types = join(&outputs, |value| value.ty.to_string());
        let mut text = String::with_capacity(self.body.len() + 1024);
        text.push_str("module @devbay {\n  func.func public @main(");
        for (at, &argument) in self.arguments.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let ty = Type::of(self.tensor(argument)?)?;
            let mark = if donors.contains(&argument) { " {jax.buffer_donor = true}" } else { "" };
            put(&mut text, format_args!("{comma}%arg{at}: {ty}{mark}"));
        }
        put(&mut text, format_args!(") -> ({types}) {{\n{}", self.body));
        put(&mut text, format_args!("    \"func.return\"({names}) : ({types}) -> ()\n  }}\n}}\n"));
        Ok(Module { text, arguments: self.arguments, checks })
    }

    /// The number of the first scalar that is not 0, counted from 1, as an int32; 0 if there is none.
    fn first_of(&mut self, scalars: &[Value]) -> Result<Value> {
        let ty = Type::new(ElementType::S32, &[]);
        let mut first = self.integers(&[0], &ty)?;
        for (k, scalar) in scalars.iter().enumerate().rev() {
            let is_broken = self.compare_number("NE", scalar, 0.0)?;
            let number = self.integers(&[k as i64 + 1], &ty)?;
            first = self.select(&is_broken, &number, &first);
        }
        Ok(first)
    }

    /// Has the program say whether integers are within their bounds, lowest and highest: what StableHLO clamps in silence
    /// is the model's fault, and fails its run. Of several bounds, those along the last axis have one each. `tensor` is what
    /// the graph has for them: what it shows to be within needs no check.
    ///
    /// # Errors
    /// Internal for another number of bounds than the last axis has.
    pub(super) fn check_range(
        &mut self,
        node: &Node<'_>,
        what: &str,
        places: &Value,
        tensor: &TensorView<'_>,
        bounds: &[(i64, i64)],
    ) -> Result<()> {
        let is_within = |(i, value): (usize, i64)| {
            let (low, high) = bounds[i % bounds.len()];
            (low..=high).contains(&value)
        };
        let known = tensor.constant_ints()?;
        if bounds.is_empty() || known.is_some_and(|values| values.into_iter().enumerate().all(is_within)) {
            return Ok(());
        }
        // Bounds that the type does not reach hold by themselves.
        let (least, most) = match places.element() {
            ElementType::S32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => (i64::MIN, i64::MAX),
        };
        let mut broken = Vec::with_capacity(2);
        for direction in ["LT", "GT"] {
            let end = |&(low, high): &(i64, i64)| if direction == "LT" { low } else { high };
            let ends: Vec<i64> = bounds.iter().map(|bound| end(bound).clamp(least, most)).collect();
            let dims = if bounds.len() == 1 { vec![] } else { vec![bounds.len() as i64] };
            let ends = self.integers(&ends, &Type::new(places.element(), &dims))?;
            let ends = self.broadcast(&ends, places.dims())?;
            let is_beyond = self.compare(direction, places, &ends);
            broken.push(self.convert(&is_beyond, ElementType::S32));
        }
        let either = self.add(&broken[0], &broken[1]);
        let axes: Vec<usize> = (0..places.rank()).collect();
        let most = if axes.is_empty() { either } else { self.reduce(Fold::Maximum, &either, &axes)? };
        let bounds: Vec<String> = bounds.iter().map(|(low, high)| format!("{low} up to {high}")).collect();
        let words = format!(
            "{} of node `{}`: {what} out of range, expected {}",
            node.op(),
            node.name(),
            bounds.join(", ")
        );
        self.checks.push((most, words));
        Ok(())
    }

    /// Remembers that operands of `op` do not go together unless `is_right`; [`bind`](Self::bind) tells it. What the
    /// primitives of StableHLO return needs no `Result` so.
    pub(super) fn expect(&mut self, is_right: bool, op: &str, operands: &[&Value]) {
        if !is_right && self.fault.is_none() {
            self.fault = Some(format!("{op} of {}", join(operands, |value| value.ty.to_string())));
        }
    }

    fn name(&mut self) -> String {
        self.n_names += 1;
        (self.n_names - 1).to_string()
    }

    /// An op with one result. `attributes` is what stands between its braces.
    pub(super) fn op(&mut self, name: &str, operands: &[&Value], attributes: &str, ty: Type) -> Value {
        self.op_with_region(name, operands, "", attributes, ty)
    }

    /// An op with one result and a region, which is text with its own names.
    pub(super) fn op_with_region(
        &mut self,
        name: &str,
        operands: &[&Value],
        region: &str,
        attributes: &str,
        ty: Type,
    ) -> Value {
        self.op_with_results(name, operands, region, attributes, vec![ty]).remove(0)
    }

    /// An op with several results. Several regions are separated by `}, {`.
    pub(super) fn op_with_results(
        &mut self,
        name: &str,
        operands: &[&Value],
        region: &str,
        attributes: &str,
        types: Vec<Type>,
    ) -> Vec<Value> {
        let results: Vec<Value> = types.into_iter().map(|ty| Value { name: self.name(), ty }).collect();
        if self.is_trial {
            return results;
        }
        let names = join(&results, |value| format!("%{}", value.name));
        let given = join(operands, |value| format!("%{}", value.name));
        put(&mut self.body, format_args!("    {names} = \"{name}\"({given})"));
        if !region.is_empty() {
            put(&mut self.body, format_args!(" ({{\n{region}    }})"));
        }
        if !attributes.is_empty() {
            put(&mut self.body, format_args!(" {{{attributes}}}"));
        }
        let given = join(operands, |value| value.ty.to_string());
        let made = join(&results, |value| value.ty.to_string());
        put(&mut self.body, format_args!(" : ({given}) -> ({made})\n"));
        results
    }

    /// A block of a region with arguments of its own, as text. It ends with what `content` gives.
    fn block(
        &mut self,
        types: &[Type],
        content: impl FnOnce(&mut Self, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<String> {
        let arguments: Vec<Value> =
            types.iter().map(|ty| Value { name: self.name(), ty: ty.clone() }).collect();
        let around = std::mem::take(&mut self.body);
        let results = content(self, &arguments);
        let inside = std::mem::replace(&mut self.body, around);
        let results = results?;
        let named = join(&arguments, |value| format!("%{}: {}", value.name, value.ty));
        let names = join(&results, |value| format!("%{}", value.name));
        let types = join(&results, |value| value.ty.to_string());
        Ok(format!("    ^bb0({named}):\n{inside}    \"stablehlo.return\"({names}) : ({types}) -> ()\n"))
    }

    /// Runs `step` so many times: it is given the number of the step from 0 on, a scalar of int64, and the values as
    /// they are then, and gives them as they become. It may use no other value and none of the graph's.
    ///
    /// # Errors
    /// Those of `step`; internal if it gives other types than it is given.
    pub(super) fn repeat(
        &mut self,
        n: i64,
        values: &[Value],
        step: impl FnOnce(&mut Self, &Value, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let counter = Type::new(ElementType::S64, &[]);
        let start = self.integers(&[0], &counter)?;
        let state: Vec<Value> = [&[start], values].concat();
        let types: Vec<Type> = state.iter().map(|value| value.ty.clone()).collect();
        let more = self.block(&types, |b, given| Ok(vec![b.compare_number("LT", &given[0], n as f64)?]))?;
        let before = self.flops;
        let body = self.block(&types, |b, given| {
            let next = b.with_number("stablehlo.add", &given[0], 1.0)?;
            let results = [vec![next], step(b, &given[0], &given[1..])?].concat();
            let is_same = results.iter().map(|value| &value.ty).eq(&types);
            is_same.then_some(results).ok_or_else(|| Error::internal("a step that changes types"))
        })?;
        self.flops += (self.flops - before) * n.saturating_sub(1).max(0) as u64;
        let regions = format!("{more}    }}, {{\n{body}");
        let state: Vec<&Value> = state.iter().collect();
        let mut results = self.op_with_results("stablehlo.while", &state, &regions, "", types);
        results.remove(0);
        Ok(results)
    }

    /// A constant with the content `bytes`, dense and little endian.
    ///
    /// # Errors
    /// Invalid if the content has another size than the type.
    pub(super) fn literal(&mut self, bytes: &[u8], ty: &Type) -> Result<Value> {
        if bytes.len() as u64 != ty.size_bytes() {
            return Err(Error::invalid(format!("{} bytes for a constant {ty}", bytes.len())));
        }
        if self.is_trial {
            return Ok(Value { name: String::new(), ty: ty.clone() });
        }
        if bytes.is_empty() {
            return Ok(self.op("stablehlo.constant", &[], &format!("value = dense<> : {ty}"), ty.clone()));
        }
        let size = ty.element.size_bytes().unwrap_or(1);
        let first = &bytes[..size];
        let is_splat = bytes.chunks_exact(size).all(|element| element == first);
        let written = if is_splat { first } else { bytes };
        if ty.is_bool() {
            if is_splat {
                let value = format!("value = dense<{}> : {ty}", first != [0]);
                return Ok(self.op("stablehlo.constant", &[], &value, ty.clone()));
            }
            // Versions of MLIR differ in the packing of truth values, so they come as bytes.
            let as_bytes = self.literal(bytes, &Type::new(ElementType::U8, &ty.dims))?;
            return Ok(self.convert(&as_bytes, ElementType::PRED));
        }
        let mut value = String::with_capacity(2 * written.len() + 64);
        value.push_str("value = dense<\"0x");
        for byte in written {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            value.push(DIGITS[usize::from(byte >> 4)].into());
            value.push(DIGITS[usize::from(byte & 15)].into());
        }
        put(&mut value, format_args!("\"> : {ty}"));
        Ok(self.op("stablehlo.constant", &[], &value, ty.clone()))
    }

    /// A constant of numbers, rounded to the element type.
    ///
    /// # Errors
    /// Invalid if there are not as many numbers as elements, unsupported if the element type does not hold one of them.
    pub(super) fn numbers(&mut self, numbers: &[f64], ty: &Type) -> Result<Value> {
        use ElementType as E;
        let integers = || -> Result<Vec<i64>> {
            let whole = numbers.iter().all(|x| x.fract() == 0.0 && x.abs() < 9e15);
            whole.then(|| numbers.iter().map(|&x| x as i64).collect()).ok_or_else(|| {
                Error::unsupported(format!("{numbers:?} as {}", ty.element.name().unwrap_or("")))
            })
        };
        match ty.element {
            E::F64 => self.spread(bytemuck::cast_slice(numbers), numbers.len(), ty),
            E::F32 => {
                let singles: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
                self.spread(bytemuck::cast_slice(&singles), singles.len(), ty)
            }
            E::F16 | E::BF16 => {
                // There is no type of 16 bits to round with here: the compiler rounds when it folds the constant.
                let wide = self.numbers(numbers, &Type::new(E::F32, &ty.dims))?;
                Ok(self.convert(&wide, ty.element))
            }
            _ => self.integers(&integers()?, ty),
        }
    }

    /// A constant of integers.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers).
    pub(super) fn integers(&mut self, numbers: &[i64], ty: &Type) -> Result<Value> {
        if ty.is_float() {
            let numbers: Vec<f64> = numbers.iter().map(|&x| x as f64).collect();
            return self.numbers(&numbers, ty);
        }
        let size = ty.element.size_bytes().unwrap_or(1);
        let bits = 8 * size as u32;
        let fits = |x: i64| match (ty.is_bool(), ty.is_unsigned()) {
            (true, _) => x == 0 || x == 1,
            (_, true) => x >= 0 && (bits == 64 || x < 1 << bits),
            _ => bits == 64 || (x >= -(1 << (bits - 1)) && x < 1 << (bits - 1)),
        };
        if let Some(other) = numbers.iter().find(|&&x| !fits(x)) {
            return Err(Error::unsupported(format!("{other} as {}", ty.element.name().unwrap_or(""))));
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()[..size].to_vec()).collect();
        self.spread(&bytes, numbers.len(), ty)
    }

    /// One element for all, or one for each.
    fn spread(&mut self, bytes: &[u8], n: usize, ty: &Type) -> Result<Value> {
        if n != 1 {
            return self.literal(bytes, ty);
        }
        let scalar = self.literal(bytes, &Type::new(ty.element, &[]))?;
        Ok(if ty.rank() == 0 { scalar } else { self.broadcast_in_dim(&scalar, &[], &ty.dims) })
    }

    /// One number in every element.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers).
    pub(super) fn splat(&mut self, number: f64, ty: &Type) -> Result<Value> {
        self.numbers(&[number], ty)
    }
}

/// Appends to a text, which cannot fail.
pub(super) fn put(text: &mut String, more: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(more);
}

fn join<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Numbers as StableHLO's attributes have them: `array<i64: 1, 2>`.
pub(super) fn array(numbers: &[i64]) -> String {
    match numbers {
        [] => "array<i64>".into(),
        _ => format!("array<i64: {}>", join(numbers, i64::to_string)),
    }
}

/// Numbers in brackets.
pub(super) fn list(numbers: &[i64]) -> String {
    format!("[{}]", join(numbers, i64::to_string))
}

/// Returns the padding at each end of each axis, as an attribute of windows: `dense<[[1, 1]]> : tensor<1x2xi64>`.
pub(super) fn padding(ends: &[(i64, i64)]) -> String {
    let pairs = join(ends, |(low, high)| format!("[{low}, {high}]"));
    match ends {
        [] => "dense<> : tensor<0x2xi64>".into(),
        _ => format!("dense<[{pairs}]> : tensor<{}x2xi64>", ends.len()),
    }
}

/// Integers that a constant operand holds, of whatever integer type.
///
/// # Errors
/// Unsupported if it is not constant.
pub(super) fn constant_ints(tensor: &TensorView<'_>) -> Result<Vec<i64>> {
    tensor
        .constant_ints()?
        .ok_or_else(|| Error::unsupported("an operand that must be constant, of type int32 or int64"))
}

/// Numbers that a constant operand holds.
///
/// # Errors
/// Unsupported if it is not constant or of another type than float32 and float64.
pub(super) fn constant_floats(tensor: &TensorView<'_>) -> Result<Vec<f64>> {
    const WHAT: &str = "a constant's numbers";
    let bytes = tensor.constant().ok_or_else(|| Error::unsupported("an operand that must be constant"))?;
    if tensor.dtype() == sdk::F64 {
        return Ok(reserve::collected(bytes.as_chunks().0.iter().copied().map(f64::from_le_bytes), WHAT)?);
    }
    let numbers = tensor.constant_f32s()?.ok_or_else(|| dtype_error(tensor.dtype()))?;
    Ok(reserve::collected(numbers.into_iter().map(f64::from), WHAT)?)
}

fn dtype_error(dtype: DType) -> Error {
    Error::unsupported(format!("numbers of type code {} with {} bits", dtype.code, dtype.bits))
}
