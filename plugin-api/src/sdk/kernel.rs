//! A plugin's description of a kernel: the descriptor that the host reads, and the functions that prepare a
//! node, estimate its cost and infer the types of its outputs.
//!
//! `prepared.rs` holds the result of preparing, `launch.rs` the arguments of a launch.

use super::error::{Error, Result};
use super::prepared::Prepared;
use super::view::{PrepareRequest, TensorView};
use crate::abi::*;
use std::borrow::Borrow;

/// Element types by their usual names.
pub mod dtypes {
    use crate::abi::*;

    const fn dtype(code: u8, bits: u8) -> DType {
        DType { code, bits, lanes: 1 }
    }
    /// IEEE 754 binary32.
    pub const F32: DType = dtype(DEVBAY_DTYPE_FLOAT, 32);
    /// IEEE 754 binary64.
    pub const F64: DType = dtype(DEVBAY_DTYPE_FLOAT, 64);
    /// IEEE 754 binary16.
    pub const F16: DType = dtype(DEVBAY_DTYPE_FLOAT, 16);
    /// bfloat16.
    pub const BF16: DType = dtype(DEVBAY_DTYPE_BFLOAT, 16);
    /// Signed 8-bit integer.
    pub const I8: DType = dtype(DEVBAY_DTYPE_INT, 8);
    /// Signed 16-bit integer.
    pub const I16: DType = dtype(DEVBAY_DTYPE_INT, 16);
    /// Signed 32-bit integer.
    pub const I32: DType = dtype(DEVBAY_DTYPE_INT, 32);
    /// Signed 64-bit integer.
    pub const I64: DType = dtype(DEVBAY_DTYPE_INT, 64);
    /// Unsigned 8-bit integer.
    pub const U8: DType = dtype(DEVBAY_DTYPE_UINT, 8);
    /// Unsigned 16-bit integer.
    pub const U16: DType = dtype(DEVBAY_DTYPE_UINT, 16);
    /// Unsigned 32-bit integer.
    pub const U32: DType = dtype(DEVBAY_DTYPE_UINT, 32);
    /// Unsigned 64-bit integer.
    pub const U64: DType = dtype(DEVBAY_DTYPE_UINT, 64);
    /// Boolean in 8 bits.
    pub const BOOL: DType = dtype(DEVBAY_DTYPE_BOOL, 8);
    /// Signed 4-bit integer.
    pub const I4: DType = dtype(DEVBAY_DTYPE_INT, 4);
    /// Unsigned 4-bit integer.
    pub const U4: DType = dtype(DEVBAY_DTYPE_UINT, 4);
    /// Signed 2-bit integer.
    pub const I2: DType = dtype(DEVBAY_DTYPE_INT, 2);
    /// Unsigned 2-bit integer.
    pub const U2: DType = dtype(DEVBAY_DTYPE_UINT, 2);
    /// 8-bit float, 4 exponent bits, no infinities.
    pub const F8E4M3FN: DType = dtype(DEVBAY_DTYPE_FLOAT8_E4M3FN, 8);
    /// 8-bit float, 4 exponent bits, no infinities and no -0.
    pub const F8E4M3FNUZ: DType = dtype(DEVBAY_DTYPE_FLOAT8_E4M3FNUZ, 8);
    /// 8-bit float, 5 exponent bits.
    pub const F8E5M2: DType = dtype(DEVBAY_DTYPE_FLOAT8_E5M2, 8);
    /// 8-bit float, 5 exponent bits, no infinities and no -0.
    pub const F8E5M2FNUZ: DType = dtype(DEVBAY_DTYPE_FLOAT8_E5M2FNUZ, 8);
    /// 8-bit power of two.
    pub const F8E8M0: DType = dtype(DEVBAY_DTYPE_FLOAT8_E8M0FNU, 8);
    /// 4-bit float.
    pub const F4E2M1: DType = dtype(DEVBAY_DTYPE_FLOAT4_E2M1FN, 4);
}

impl TypeVar {
    /// Creates a type variable that allows any of `dtypes`.
    pub const fn of(dtypes: &'static [DType]) -> Self {
        Self { struct_size: size_of::<Self>() as u32, n_dtypes: dtypes.len() as u32, dtypes: dtypes.as_ptr() }
    }
}

pub use crate::abi::TypeVar;

/// Cost of one launch; see [`KernelCost`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Arithmetic operations; a multiply-add counts as two.
    pub flops: u64,
    /// Bytes read, counting each operand once.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// A function that prepares a kernel.
pub type PrepareFn<D> = fn(&PrepareRequest<'_, D>) -> Result<Prepared>;
/// A function that prepares a kernel by calling another prepare function with a request of its own.
pub type AdaptFn<D> = fn(&PrepareRequest<'_, D>, PrepareFn<D>) -> Result<Prepared>;
/// A function that estimates the cost of a kernel.
pub type CostFn<D> = fn(&PrepareRequest<'_, D>) -> Result<Cost>;

/// A function that infers the type of one output of an op that ONNX does not define: dtype and extents.
pub type ShapeFn<D> = fn(&PrepareRequest<'_, D>, usize) -> Result<(DType, Vec<i64>)>;

/// One kernel of a plugin: first the descriptor for the host, then the functions that the SDK calls.
#[repr(C)]
pub struct Kernel<D: 'static> {
    info: KernelInfo,
    attributes: &'static [&'static str],
    prepare: PreparedBy<D>,
    adapt: Option<AdaptFn<D>>,
    cost: Option<CostFn<D>>,
    shape: Option<ShapeFn<D>>,
}

/// Ways to prepare a kernel.
enum PreparedBy<D: 'static> {
    /// A function of the plugin.
    Own(PrepareFn<D>),
    /// A kernel that several plugins share, including its cost and its types.
    Shared(&'static (dyn Shared<D> + Sync)),
}

impl<D: 'static> Clone for PreparedBy<D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: 'static> std::marker::Copy for PreparedBy<D> {}

/// A kernel of another list, called on behalf of a device `D`.
trait Shared<D> {
    fn prepare_for(&self, request: &PrepareRequest<'_, D>) -> Result<Prepared>;
    fn estimate_for(&self, request: &PrepareRequest<'_, D>) -> Result<Cost>;
    fn output_type_for(
        &self,
        request: &PrepareRequest<'_, D>,
        output_idx: usize,
    ) -> Result<(DType, Vec<i64>)>;
}

impl<D: Borrow<T>, T: 'static> Shared<D> for Kernel<T> {
    fn prepare_for(&self, request: &PrepareRequest<'_, D>) -> Result<Prepared> {
        self.prepare(&request.on(request.device.borrow()))
    }

    fn estimate_for(&self, request: &PrepareRequest<'_, D>) -> Result<Cost> {
        self.estimate(&request.on(request.device.borrow()))
    }

    fn output_type_for(
        &self,
        request: &PrepareRequest<'_, D>,
        output_idx: usize,
    ) -> Result<(DType, Vec<i64>)> {
        self.output_type(&request.on(request.device.borrow()), output_idx)
    }
}

impl<D: 'static> Clone for Kernel<D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: 'static> std::marker::Copy for Kernel<D> {}

impl<D: 'static> Kernel<D> {
    /// Describes a kernel of ONNX's op `op` as defined in opset `since_version`. Set its types and operands
    /// next.
    pub const fn new(op: &'static str, since_version: u32, prepare: PrepareFn<D>) -> Self {
        Self {
            info: KernelInfo {
                struct_size: size_of::<KernelInfo>() as u32,
                since_version,
                domain: Str::EMPTY,
                op: Str::new(op),
                n_inputs_min: 0,
                n_inputs_max: 0,
                n_outputs_min: 0,
                n_outputs_max: 0,
                typevars: List::EMPTY,
                input_typevars: List::EMPTY,
                output_typevars: List::EMPTY,
                priority: 0,
                reserved: 0,
                flags: DEVBAY_KERNEL_DETERMINISTIC,
                host_value_inputs: 0,
                in_place: List::EMPTY,
                doc: Str::EMPTY,
            },
            attributes: &[],
            prepare: PreparedBy::Own(prepare),
            adapt: None,
            cost: None,
            shape: None,
        }
    }

    /// Wraps a kernel written for a type `T` that the devices of several plugins have in common; the device
    /// lends its `T`.
    #[must_use]
    pub const fn shared<T: 'static>(kernel: &'static Kernel<T>) -> Self
    where
        D: Borrow<T>,
    {
        Self {
            info: kernel.info,
            attributes: kernel.attributes,
            prepare: PreparedBy::Shared(kernel),
            adapt: None,
            cost: None,
            shape: None,
        }
    }

    /// Wraps a list of kernels as [`Kernel::shared`] does.
    #[must_use]
    pub const fn shared_all<T: 'static, const N: usize>(kernels: &'static [Kernel<T>; N]) -> [Self; N]
    where
        D: Borrow<T>,
    {
        assert!(N > 0, "a list of kernels without a kernel");
        let mut all = [Self::shared(&kernels[0]); N];
        let mut i = 1;
        while i < N {
            all[i] = Self::shared(&kernels[i]);
            i += 1;
        }
        all
    }

    /// Sets another domain for the op.
    #[must_use]
    pub const fn domain(mut self, domain: &'static str) -> Self {
        self.info.domain = Str::new(domain);
        self
    }

    /// Sets the type variables.
    #[must_use]
    pub const fn types(mut self, typevars: &'static [TypeVar]) -> Self {
        self.info.typevars = List::new(typevars);
        self
    }

    /// Sets the type variable of each named input and output; all are required unless
    /// [`Kernel::inputs`] and [`Kernel::outputs`] say otherwise.
    #[must_use]
    pub const fn operands(mut self, inputs: &'static [u8], outputs: &'static [u8]) -> Self {
        self.info.input_typevars = List::new(inputs);
        self.info.output_typevars = List::new(outputs);
        self.info.n_inputs_min = inputs.len() as u32;
        self.info.n_inputs_max = inputs.len() as u32;
        self.info.n_outputs_min = outputs.len() as u32;
        self.info.n_outputs_max = outputs.len() as u32;
        self
    }

    /// Sets the fewest and most inputs; [`DEVBAY_VARIADIC`] repeats the last.
    #[must_use]
    pub const fn inputs(mut self, min: u32, max: u32) -> Self {
        self.info.n_inputs_min = min;
        self.info.n_inputs_max = max;
        self
    }

    /// Sets the fewest and most outputs; [`DEVBAY_VARIADIC`] repeats the last.
    #[must_use]
    pub const fn outputs(mut self, min: u32, max: u32) -> Self {
        self.info.n_outputs_min = min;
        self.info.n_outputs_max = max;
        self
    }

    /// Returns the most outputs; [`DEVBAY_VARIADIC`] for any number.
    pub(crate) fn n_outputs_max(&self) -> u32 {
        self.info.n_outputs_max
    }

    /// Sets the input whose memory each output may share, -1 for none.
    #[must_use]
    pub const fn in_place(mut self, inputs: &'static [i16]) -> Self {
        self.info.in_place = List::new(inputs);
        self
    }

    /// Accepts strided inputs and outputs ([`TensorView::strides`](super::TensorView::strides)).
    #[must_use]
    pub const fn strided(mut self) -> Self {
        self.info.flags |= DEVBAY_KERNEL_STRIDED;
        self
    }

    /// Sets the names of attributes that the kernel reads. A node with another attribute is refused as
    /// UNSUPPORTED before the kernel's own function is called.
    /// [`Plugin::reads_attribute`](super::Plugin::reads_attribute) adds names for all kernels.
    #[must_use]
    pub const fn attributes(mut self, names: &'static [&'static str]) -> Self {
        self.attributes = names;
        self
    }

    /// Sets the inputs that must be known when the node is prepared: bit i for input i.
    #[must_use]
    pub const fn host_values(mut self, inputs: u64) -> Self {
        self.info.host_value_inputs = inputs;
        self
    }

    /// Sets flags, `DEVBAY_KERNEL_*`; the default is DETERMINISTIC.
    #[must_use]
    pub const fn flags(mut self, flags: u64) -> Self {
        self.info.flags = flags;
        self
    }

    /// Sets the priority: above 0 is preferred to other kernels for the same node.
    #[must_use]
    pub const fn priority(mut self, priority: i32) -> Self {
        self.info.priority = priority;
        self
    }

    /// Sets a function that runs before the prepare function and calls it; it may convert operands to types
    /// that the prepare function supports.
    #[must_use]
    pub const fn adapted(mut self, adapt: AdaptFn<D>) -> Self {
        self.adapt = Some(adapt);
        self
    }

    /// Sets the function that estimates its cost.
    #[must_use]
    pub const fn cost(mut self, cost: CostFn<D>) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Sets the function that infers its outputs' types, for an op that ONNX does not define.
    #[must_use]
    pub const fn shape(mut self, shape: ShapeFn<D>) -> Self {
        self.shape = Some(shape);
        self
    }

    /// Sets one human-readable line.
    #[must_use]
    pub const fn doc(mut self, doc: &'static str) -> Self {
        self.info.doc = Str::new(doc);
        self
    }

    /// Returns the domain and name of its op.
    pub(crate) fn op(&self) -> (&'static str, &'static str) {
        // SAFETY: the texts of `info` were made from `&'static str`s.
        let (domain, op) = unsafe { (self.info.domain.get(), self.info.op.get()) };
        (domain.unwrap_or_default(), op.unwrap_or_default())
    }

    /// Returns the descriptor that the host reads.
    pub const fn info(&self) -> &KernelInfo {
        &self.info
    }

    /// Refuses attributes that neither the kernel nor the plugin reads, because their effect would be
    /// missing.
    pub(crate) fn refuse_attributes(
        &self,
        request: &PrepareRequest<'_, D>,
        reads: fn(domain: &str, op: &str, name: &str) -> bool,
    ) -> Result<()> {
        let (domain, op) = self.op();
        let is_read = |name: &str| self.attributes.contains(&name) || reads(domain, op, name);
        match request.attrs.iter().find(|attr| !is_read(attr.name)) {
            Some(attr) => Err(Error::unsupported(format!(
                "the attribute {}, which the kernel does not read",
                attr.name
            ))),
            None => Ok(()),
        }
    }

    /// Refuses operands that do not match the descriptor, so that the kernel's own function need not check:
    /// required operands that are absent, too many operands, and dtypes that are not listed, or that differ
    /// where one type variable is shared.
    pub(crate) fn refuse_operands(&self, request: &PrepareRequest<'_, D>) -> Result<()> {
        let info = &self.info;
        let (n_inputs, n_outputs) = (info.input_typevars.len, info.output_typevars.len);
        refuse_count("input", &request.inputs, (info.n_inputs_min, info.n_inputs_max), n_inputs)?;
        refuse_count("output", &request.outputs, (info.n_outputs_min, info.n_outputs_max), n_outputs)?;
        let broken = |e: ListError| match e {
            ListError::NoMemory(error) => error.into(),
            e => Error::new(DEVBAY_STATUS_INTERNAL, format!("the kernel's own descriptor is broken: {e}")),
        };
        // SAFETY: the lists of `info` were made from static arrays.
        let typevars = unsafe { read_growable_list::<TypeVar>(&self.info.typevars) }.map_err(broken)?;
        let mut bound: Vec<Option<DType>> = vec![None; typevars.len()];
        let sides = [
            ("input", &request.inputs, &self.info.input_typevars),
            ("output", &request.outputs, &self.info.output_typevars),
        ];
        for (side, operands, vars) in sides {
            // SAFETY: the kernel's own static list of type variables.
            let vars: Vec<u8> = unsafe { read_list(vars, "uint8_t") }.map_err(broken)?;
            for (i, operand) in operands.iter().enumerate().filter(|(_, operand)| !operand.is_absent()) {
                let var = vars.get(i).or(vars.last()).map(|&var| usize::from(var));
                let Some((var, typevar)) = var.and_then(|var| Some((var, typevars.get(var)?))) else {
                    return Err(Error::unsupported(format!("{side} {i}, which the kernel does not have")));
                };
                let dtype = operand.dtype();
                let allowed = List {
                    ptr: typevar.dtypes.cast(),
                    len: u64::from(typevar.n_dtypes),
                    stride: size_of::<DType>() as u64,
                };
                // SAFETY: the dtypes of the kernel's own type variable are static.
                let allowed: Vec<DType> = unsafe { read_list(&allowed, "DType") }.map_err(broken)?;
                if !allowed.contains(&dtype) || bound[var].is_some_and(|other| other != dtype) {
                    return Err(Error::unsupported(format!("{side} {i} of {dtype:?}")));
                }
                bound[var] = Some(dtype);
            }
        }
        Ok(())
    }

    pub(crate) fn prepare(&self, request: &PrepareRequest<'_, D>) -> Result<Prepared> {
        match (self.prepare, self.adapt) {
            (PreparedBy::Shared(kernel), _) => kernel.prepare_for(request),
            (PreparedBy::Own(prepare), Some(adapt)) => adapt(request, prepare),
            (PreparedBy::Own(prepare), None) => prepare(request),
        }
    }

    pub(crate) fn estimate(&self, request: &PrepareRequest<'_, D>) -> Result<Cost> {
        match (self.prepare, self.cost) {
            (PreparedBy::Shared(kernel), _) => kernel.estimate_for(request),
            (PreparedBy::Own(_), Some(cost)) => cost(request),
            (PreparedBy::Own(_), None) => Err(Error::unsupported("this kernel has no cost function")),
        }
    }

    pub(crate) fn output_type(
        &self,
        request: &PrepareRequest<'_, D>,
        output_idx: usize,
    ) -> Result<(DType, Vec<i64>)> {
        match (self.prepare, self.shape) {
            (PreparedBy::Shared(kernel), _) => kernel.output_type_for(request, output_idx),
            (PreparedBy::Own(_), Some(shape)) => shape(request, output_idx),
            (PreparedBy::Own(_), None) => Err(Error::unsupported("this kernel has no shape function")),
        }
    }
}

/// Refuses operands of one side that are required but absent, or more than the kernel has.
fn refuse_count(side: &str, operands: &[TensorView<'_>], (min, max): (u32, u32), n_named: u64) -> Result<()> {
    let given = operands.iter().rposition(|operand| !operand.is_absent()).map_or(0, |last| last + 1);
    if max != DEVBAY_VARIADIC && given > max as usize {
        return Err(Error::unsupported(format!("{given} {side}s, the kernel has {max}")));
    }
    // The last one is repeated: each of them is there.
    let n_single = if max == DEVBAY_VARIADIC { n_named.saturating_sub(1) } else { u64::MAX };
    let is_absent = |i: &usize| {
        let is_required = *i < min as usize || *i as u64 >= n_single;
        is_required && operands.get(*i).is_none_or(TensorView::is_absent)
    };
    match (0..given.max(min as usize)).find(is_absent) {
        Some(i) => Err(Error::invalid(format!("the {side} {i} is required and absent"))),
        None => Ok(()),
    }
}

/// The ABI's list of kernels reads a `Kernel` through its first field.
const _: () = assert!(core::mem::offset_of!(Kernel<()>, info) == 0);
