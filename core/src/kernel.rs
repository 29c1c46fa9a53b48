//! The kernels that a plugin lists (B20): owned descriptors, found by op.

use crate::program::{Node, catalogue};
use crate::tensor::{TensorType, dtype_name};
use devbay_plugin_api::abi::{
    DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_KERNEL_DETERMINISTIC, DEVBAY_KERNEL_STRIDED, DEVBAY_NUMERICS_BF16,
    DEVBAY_NUMERICS_F16, DEVBAY_NUMERICS_STRICT, DEVBAY_NUMERICS_TF32, DEVBAY_VARIADIC, DType, KernelCost,
    KernelInfo, ListError, Str, TypeVar, read_growable_list, read_list,
};
use std::collections::HashMap;

/// The precision that matrix products may round their inputs to, for speed; sums have 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numerics {
    /// No rounding: results are as the op's specification has them in the tensors' own precision.
    #[default]
    Strict,
    /// f32 with ten bits of mantissa.
    Tf32,
    /// f16.
    F16,
    /// bf16.
    Bf16,
}

impl Numerics {
    /// As `prepare` is told, `DEVBAY_NUMERICS_*`.
    pub fn code(self) -> u64 {
        match self {
            Self::Strict => DEVBAY_NUMERICS_STRICT,
            Self::Tf32 => DEVBAY_NUMERICS_TF32,
            Self::F16 => DEVBAY_NUMERICS_F16,
            Self::Bf16 => DEVBAY_NUMERICS_BF16,
        }
    }
}

/// Work of one launch, as its kernel states it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Arithmetic operations; a multiply-add counts as two.
    pub flops: u64,
    /// Bytes read and written, each operand once.
    pub bytes: u64,
}

impl From<KernelCost> for Counts {
    fn from(cost: KernelCost) -> Self {
        Self { flops: cost.flops, bytes: cost.bytes_read.saturating_add(cost.bytes_written) }
    }
}

/// One kernel of a plugin.
#[derive(Clone, Debug)]
pub struct KernelDef {
    /// By which `prepare` names it: its position in the plugin's list, or a number that `device_kernels` gave.
    pub idx: u32,
    /// Domain of the op; empty for ONNX's own.
    pub domain: String,
    /// Name of the op.
    pub op: String,
    /// The op version that it implements.
    pub since_version: u32,
    /// Fewest and most inputs.
    pub n_inputs: (u32, u32),
    /// Fewest and most outputs.
    pub n_outputs: (u32, u32),
    /// Element types that each type variable may be.
    pub typevars: Vec<Vec<DType>>,
    /// Type variable of each named input; the last is repeated.
    pub input_typevars: Vec<u8>,
    /// Type variable of each named output; the last is repeated.
    pub output_typevars: Vec<u8>,
    /// Inputs that must be known when a node is prepared, a bit each.
    pub host_value_inputs: u64,
    /// For each output, the input that it may share its memory with.
    pub in_place: Vec<Option<usize>>,
    /// Higher ones are asked first.
    pub priority: i32,
    /// Takes strides.
    pub strided: bool,
    /// Gives the same bits every time.
    pub deterministic: bool,
    /// Extents of its outputs depend on data.
    pub data_shape: bool,
    /// One line for a person.
    pub doc: String,
}

impl KernelDef {
    /// Reads a descriptor.
    ///
    /// # Safety
    /// `info` was read from a plugin's static data.
    pub(crate) unsafe fn read(idx: u32, info: &KernelInfo) -> Result<Self, ListError> {
        // SAFETY: the list is the plugin's static data (# Safety).
        let typevars = unsafe { read_growable_list::<TypeVar>(&info.typevars) }?
            .iter()
            .map(|typevar| {
                let list = devbay_plugin_api::abi::List {
                    ptr: typevar.dtypes.cast(),
                    len: u64::from(typevar.n_dtypes),
                    stride: size_of::<DType>() as u64,
                };
                // SAFETY: the type variable's dtypes are static data (# Safety).
                unsafe { read_list::<DType>(&list, "DType") }
            })
            .collect::<Result<Vec<_>, _>>()?;
        // SAFETY: static data (# Safety).
        let in_place = unsafe { read_list::<i16>(&info.in_place, "int16_t") }?;
        Ok(Self {
            idx,
            // SAFETY: static data (# Safety).
            domain: unsafe { text(&info.domain) }?,
            // SAFETY: static data (# Safety).
            op: unsafe { text(&info.op) }?,
            since_version: info.since_version,
            n_inputs: (info.n_inputs_min, info.n_inputs_max),
            n_outputs: (info.n_outputs_min, info.n_outputs_max),
            typevars,
            // SAFETY: static data (# Safety).
            input_typevars: unsafe { read_list(&info.input_typevars, "uint8_t") }?,
            // SAFETY: static data (# Safety).
            output_typevars: unsafe { read_list(&info.output_typevars, "uint8_t") }?,
            host_value_inputs: info.host_value_inputs,
            in_place: in_place.iter().map(|&input| usize::try_from(input).ok()).collect(),
            priority: info.priority,
            strided: info.flags & DEVBAY_KERNEL_STRIDED != 0,
            deterministic: info.flags & DEVBAY_KERNEL_DETERMINISTIC != 0,
            data_shape: info.flags & DEVBAY_KERNEL_DATA_SHAPE != 0,
            // SAFETY: static data (# Safety).
            doc: unsafe { text(&info.doc) }?,
        })
    }

    /// Returns whether input `i` must be known when a node is prepared.
    pub fn needs_value(&self, i: usize) -> bool {
        i < 64 && self.host_value_inputs & 1 << i != 0
    }

    /// Checks that it takes operands of these types; None stands for an absent one. The error names the refused
    /// operand.
    pub fn takes(
        &self,
        inputs: &[Option<&TensorType>],
        outputs: &[Option<&TensorType>],
    ) -> Result<(), String> {
        self.takes_count("input", inputs, self.n_inputs, self.input_typevars.len())?;
        self.takes_count("output", outputs, self.n_outputs, self.output_typevars.len())?;
        self.takes_types(inputs, outputs)
    }

    /// Checks that it can be asked for its result types on these inputs. The error names the refused input.
    pub fn takes_inputs(&self, inputs: &[Option<&TensorType>]) -> Result<(), String> {
        self.takes_count("input", inputs, self.n_inputs, self.input_typevars.len())?;
        self.takes_types(inputs, &[])
    }

    /// Checks the operands of one side: those up to the fewest are there, as are those that repeat the last one, and
    /// absent ones at the end may be left out.
    fn takes_count(
        &self,
        side: &str,
        operands: &[Option<&TensorType>],
        (min, max): (u32, u32),
        n_named: usize,
    ) -> Result<(), String> {
        let given = operands.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if max != DEVBAY_VARIADIC && given > max as usize {
            let s = if max == 1 { "" } else { "s" };
            return Err(format!("it has {max} {side}{s}, found {given}"));
        }
        let n_single = if max == DEVBAY_VARIADIC { n_named.saturating_sub(1) } else { usize::MAX };
        let is_absent = |i: &usize| {
            let is_required = *i < min as usize || *i >= n_single;
            is_required && operands.get(*i).copied().flatten().is_none()
        };
        match (0..given.max(min as usize)).find(is_absent) {
            Some(i) => Err(format!("it requires the {side} {i}, found none")),
            None => Ok(()),
        }
    }

    fn takes_types(
        &self,
        inputs: &[Option<&TensorType>],
        outputs: &[Option<&TensorType>],
    ) -> Result<(), String> {
        let mut bound: Vec<Option<DType>> = vec![None; self.typevars.len()];
        let sides = [("input", inputs, &self.input_typevars), ("output", outputs, &self.output_typevars)];
        for (side, operands, typevars) in sides {
            for (i, ty) in operands.iter().enumerate() {
                let (Some(ty), Some(&typevar)) = (ty, typevars.get(i).or(typevars.last())) else {
                    continue;
                };
                let Some(allowed) = self.typevars.get(usize::from(typevar)) else {
                    return Err(format!("{side} {i} has no type variable"));
                };
                if !allowed.contains(&ty.dtype) {
                    let names: Vec<_> = allowed.iter().map(|&dtype| dtype_name(dtype)).collect();
                    return Err(format!(
                        "{side} {i} is {}, it takes {}",
                        dtype_name(ty.dtype),
                        names.join(", ")
                    ));
                }
                match bound[usize::from(typevar)] {
                    Some(dtype) if dtype != ty.dtype => {
                        return Err(format!(
                            "{side} {i} is {}, another operand of the same type is {}",
                            dtype_name(ty.dtype),
                            dtype_name(dtype)
                        ));
                    }
                    _ => bound[usize::from(typevar)] = Some(ty.dtype),
                }
            }
        }
        Ok(())
    }
}

/// The kernels of a plugin, found by op.
#[derive(Clone, Debug, Default)]
pub struct KernelTable {
    kernels: Vec<KernelDef>,
    /// Positions by domain, then by name, the preferred first.
    by_op: HashMap<String, HashMap<String, Vec<usize>>>,
}

impl KernelTable {
    /// Creates a table of kernels in the plugin's order.
    pub fn new(kernels: Vec<KernelDef>) -> Self {
        let mut by_op: HashMap<_, HashMap<_, Vec<usize>>> = HashMap::new();
        for (i, kernel) in kernels.iter().enumerate() {
            let of_domain = by_op.entry(kernel.domain.clone()).or_default();
            of_domain.entry(kernel.op.clone()).or_default().push(i);
        }
        for list in by_op.values_mut().flat_map(HashMap::values_mut) {
            // Stable: of two with one priority, the plugin's order decides.
            list.sort_by_key(|&i| std::cmp::Reverse(kernels[i].priority));
        }
        Self { kernels, by_op }
    }

    /// Kernels of an op, the preferred first.
    pub fn find(&self, domain: &str, op: &str) -> impl Iterator<Item = &KernelDef> {
        let list = self.by_op.get(domain).and_then(|of_domain| of_domain.get(op));
        list.into_iter().flatten().map(|&i| &self.kernels[i])
    }

    /// Returns whether there is a kernel of an op, of any version and type.
    pub fn has(&self, domain: &str, op: &str) -> bool {
        self.find(domain, op).next().is_some()
    }

    /// Returns all kernels, in the plugin's order.
    pub fn iter(&self) -> impl Iterator<Item = &KernelDef> {
        self.kernels.iter()
    }

    /// Returns the kernel that `prepare` knows by this number.
    pub fn get(&self, idx: u32) -> Option<&KernelDef> {
        self.kernels.iter().find(|kernel| kernel.idx == idx)
    }

    /// Returns the number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Returns whether the plugin has no kernels.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }
}

/// # Safety
/// The text's bytes are static data of the plugin's.
pub(crate) unsafe fn text(text: &Str) -> Result<String, ListError> {
    // SAFETY: the bytes are static data of the plugin's (# Safety).
    Ok(unsafe { text.get() }?.to_owned())
}

/// Returns whether a kernel implements the node's op in the version that the program holds.
pub fn implements(kernel: &KernelDef, node: &Node) -> bool {
    match catalogue::find(&node.op.domain, &node.op.name) {
        Some(def) => {
            let accepted = catalogue::accepts(def, kernel.since_version);
            accepted && catalogue::oldest_kernel(node) <= kernel.since_version
        }
        None => kernel.since_version == node.op.version,
    }
}
