//! Kernels for element types that no loop is written for: what they read is converted to a type that has one,
//! the kernel for that type runs, and what it wrote is converted back.
//!
//! f16 and bf16 become f32, and results are rounded once, at the end of the op. Constants are converted once, when
//! the host packs them, and a layout that the kernel itself asks for is made from the converted ones. Operands of
//! types that need no change are passed on as they are, and without any that does, the kernel stands alone.
//!
//! Left out: kernels whose results have extents that depend on data. Those that move elements need no arithmetic.

use crate::device::CpuDevice;
use crate::kernels::geometry::extents::element_size;
use crate::kernels::numbers::convert::{Convert, bytes, half_to_single, single_to_half};
use devbay_plugin_api::abi;
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::*;
use std::ffi::c_void;
use std::sync::Arc;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

/// Elements of a chunk of a conversion.
const GRAIN: usize = 16 * 1024;
/// Alignment of operands in the workspace.
const ALIGN: usize = 64;
/// References that a launch holds without allocating.
const REFS_INLINE: usize = 16;

/// An adapter for kernels of f32: operands of f16 and bf16 are converted.
///
/// # Errors
/// Errors of the kernel for f32.
pub(crate) fn floats(
    request: &Request<'_>,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Result<Prepared> {
    let narrow = |tensor: &TensorView<'_>| !tensor.is_absent() && wide_type(tensor.dtype()).is_some();
    if request.inputs.iter().chain(&request.outputs).any(narrow) {
        return widened(request, prepare);
    }
    prepare(request)
}

/// The type that elements of a type are converted to.
fn wide_type(dtype: DType) -> Option<DType> {
    matches!(dtype, F16 | BF16).then_some(F32)
}

/// An operand that stands converted in the workspace.
struct Converted {
    /// Its place among the references.
    at: usize,
    /// Its first byte in the workspace.
    offset: usize,
    n: usize,
    /// Bytes of an element, as the host has it and converted.
    sizes: [usize; 2],
    convert: Convert,
}

impl Converted {
    fn bytes(&self) -> u64 {
        (self.n * self.sizes[1]) as u64
    }
}

/// A kernel with converted operands.
struct Widened {
    inner: Arc<Prepared>,
    host: Host,
    inputs: Vec<Converted>,
    outputs: Vec<Converted>,
    n_operands: usize,
    /// Where the kernel's own workspace begins in this one.
    workspace: usize,
}

/// Takes room in a workspace.
fn reserve(end: &mut usize, n: usize, size: usize) -> Result<usize> {
    let start = *end;
    let next =
        n.checked_mul(size).and_then(|bytes| start.checked_add(bytes)?.checked_next_multiple_of(ALIGN));
    *end = next.ok_or_else(|| Error::out_of_memory("operands whose conversion is larger than memory"))?;
    Ok(start)
}

/// The content of a constant, converted.
fn converted(bytes: &[u8], n: usize, sizes: [usize; 2], convert: Convert) -> Result<Vec<u8>> {
    let size = n.checked_mul(sizes[1]).filter(|_| bytes.len() == n * sizes[0]);
    let size =
        size.ok_or_else(|| Error::invalid(format!("a constant of {} bytes for {n} elements", bytes.len())))?;
    let mut content = reserve::zeroed(size, "a converted constant")?;
    // SAFETY: both have `n` elements of their sizes, was checked and made so.
    unsafe { convert(bytes.as_ptr(), content.as_mut_ptr(), n) };
    Ok(content)
}

fn widened(request: &Request<'_>, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Result<Prepared> {
    let n_inputs = request.inputs.len();
    let mut end = 0;
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    let mut contents: Vec<Option<Vec<u8>>> = Vec::new();
    for (i, tensor) in request.inputs.iter().chain(&request.outputs).enumerate() {
        contents.push(None);
        let (dtype, isa) = (tensor.dtype(), request.device.isa);
        let Some(to) = wide_type(dtype).filter(|_| !tensor.is_absent()) else {
            continue;
        };
        let (n, sizes) = (tensor.n_elements(), [element_size(dtype), element_size(to)]);
        let convert = if i < n_inputs { half_to_single(dtype, isa) } else { single_to_half(dtype, isa) };
        if let Some(bytes) = tensor.constant() {
            contents[i] = Some(converted(bytes, n, sizes, convert)?);
        }
        // An operand that the host converts once needs no room in each launch.
        let offset =
            if i < n_inputs && comes_packed(request, i) { 0 } else { reserve(&mut end, n, sizes[1])? };
        let operand = Converted { at: i, offset, n, sizes, convert };
        if i < n_inputs { &mut inputs } else { &mut outputs }.push(operand);
    }
    let mut inner = prepare(&PrepareRequest {
        device: request.device,
        domain: request.domain,
        op: request.op,
        host: request.host,
        attrs: request.attrs.clone(),
        inputs: views(&request.inputs, &contents),
        outputs: views(&request.outputs, &contents[n_inputs..]),
        numerics: request.numerics,
        label: request.label,
        abi_minor: request.abi_minor,
    })?;
    inner.set_operands(n_inputs, request.outputs.len());
    let inner = Arc::new(inner);
    let (size, align) = inner.workspace();
    end = end.checked_next_multiple_of(align.max(ALIGN)).unwrap_or(usize::MAX);
    let workspace = reserve(&mut end, size, 1)?;
    let packs = packs(request, &inner, &inputs);
    inputs.retain(|operand| packs.iter().all(|pack| pack.input_idx as usize != operand.at));
    let kernel = Widened {
        inner: inner.clone(),
        host: request.host,
        inputs,
        outputs,
        n_operands: n_inputs + request.outputs.len(),
        workspace,
    };
    // SAFETY: `launch` takes a `State<Widened>`, does not unwind (loops that cannot panic, and the launch of
    // another kernel), and uses the references of the operands and of the workspace.
    let mut prepared =
        unsafe { Prepared::raw(launch, kernel) }.with_workspace(end.max(ALIGN), align.max(ALIGN));
    for pack in packs {
        prepared = prepared.with_packed(
            pack.input_idx as usize,
            pack.layout_id,
            pack.size_bytes,
            pack.align,
            pack.into_fn(inner.clone()),
        );
    }
    Ok(prepared)
}

/// The operands as the kernel is to see them.
fn views<'b>(tensors: &[TensorView<'b>], contents: &'b [Option<Vec<u8>>]) -> Vec<TensorView<'b>> {
    let view = |(tensor, content): (&TensorView<'b>, &'b Option<Vec<u8>>)| match wide_type(tensor.dtype()) {
        Some(to) if !tensor.is_absent() => tensor.retyped(to, content.as_deref()),
        _ => *tensor,
    };
    tensors.iter().zip(contents).map(view).collect()
}

/// A constant that the host converts once, or converts and packs as the kernel asks for.
struct Pack {
    input_idx: u32,
    layout_id: u64,
    size_bytes: usize,
    align: usize,
    n: usize,
    sizes: [usize; 2],
    convert: Convert,
    /// True if it is packed too.
    packed: bool,
}

impl Pack {
    fn into_fn(
        self,
        inner: Arc<Prepared>,
    ) -> impl Fn(&[u8], &mut [u8]) -> Result<()> + Send + Sync + 'static {
        move |src, dst| {
            let content = converted(src, self.n, self.sizes, self.convert)?;
            if self.packed {
                return inner.pack_within(self.input_idx, &content, dst);
            }
            match dst.get_mut(..content.len()) {
                Some(dst) => dst.copy_from_slice(&content),
                None => return Err(Error::invalid(format!("{} bytes for {}", dst.len(), content.len()))),
            }
            Ok(())
        }
    }
}

/// Returns whether the host converts an input once and hands over the result.
fn comes_packed(request: &Request<'_>, i: usize) -> bool {
    let tensor = &request.inputs[i];
    request.abi_minor >= 2 && tensor.constant().is_some() && tensor.n_elements() > 0
}

/// Returns what the host packs: constants that are converted, and what the kernel asks for.
fn packs(request: &Request<'_>, inner: &Prepared, inputs: &[Converted]) -> Vec<Pack> {
    // Constants that the kernel packs and that need no conversion.
    let as_they_are =
        |pack: &&abi::ConstantPack| inputs.iter().all(|input| input.at != pack.input_idx as usize);
    let mut packs: Vec<Pack> = inner
        .packs()
        .iter()
        .filter(as_they_are)
        .map(|pack| Pack {
            input_idx: pack.input_idx,
            layout_id: pack.layout_id,
            size_bytes: pack.size_bytes as usize,
            align: pack.align as usize,
            n: request.input(pack.input_idx as usize).and_then(TensorView::constant).map_or(0, <[u8]>::len),
            sizes: [1, 1],
            convert: bytes,
            packed: true,
        })
        .collect();
    for operand in inputs.iter().filter(|operand| comes_packed(request, operand.at)) {
        let tensor = &request.inputs[operand.at];
        let own = inner.packs().iter().find(|pack| pack.input_idx as usize == operand.at);
        // The layout of the same bytes as another type is another one.
        let salt = u64::from(tensor.dtype().code) << 8 | u64::from(tensor.dtype().bits);
        let salt = (salt | 1 << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        packs.push(Pack {
            input_idx: operand.at as u32,
            layout_id: own.map_or(0, |pack| pack.layout_id) ^ salt,
            size_bytes: own.map_or(operand.bytes() as usize, |pack| pack.size_bytes as usize),
            align: own.map_or(ALIGN, |pack| pack.align as usize),
            n: operand.n,
            sizes: operand.sizes,
            convert: operand.convert,
            packed: own.is_some(),
        });
    }
    packs
}

/// Converts `operand` between the host's memory and the workspace.
fn convert(host: &Host, operand: &Converted, from: u64, to: u64, sizes: [usize; 2]) -> Result<()> {
    let (from, to) = (SendPtr(from as *mut u8), SendPtr(to as *mut u8));
    host.parallel_for(operand.n, GRAIN, |range, _| {
        let (x, y) = (from.at(range.start * sizes[0]), to.at(range.start * sizes[1]));
        // SAFETY: the range lies within both, whose sizes `prepare` was told, and chunks are apart.
        unsafe { (operand.convert)(x, y, range.len()) };
        Ok(())
    })
}

/// A launch: inputs there, the kernel, outputs back.
unsafe extern "C" fn launch(
    state: *const c_void,
    stream: *mut abi::Stream,
    refs: *const abi::BufferRef,
    _dims: *const i64,
) -> abi::Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let state = unsafe { &(*state.cast::<KernelState<Widened>>()).kernel };
    // SAFETY: the operands have references, and so has the workspace, which every one of these asks for (B21).
    let refs = unsafe { std::slice::from_raw_parts(refs, state.n_operands + 1) };
    let workspace = refs[state.n_operands];
    let within = |offset: usize, length: u64| abi::BufferRef {
        addr: workspace.addr + offset as u64,
        offset: workspace.offset + offset as u64,
        length,
        ..workspace
    };
    let (mut inline, mut spilled) = ([abi::BufferRef::ABSENT; REFS_INLINE], Vec::new());
    let inner = match inline.get_mut(..refs.len()) {
        Some(inner) => {
            inner.copy_from_slice(refs);
            inner
        }
        None => {
            spilled.extend_from_slice(refs);
            &mut spilled[..]
        }
    };
    inner[state.n_operands] = within(state.workspace, state.inner.workspace().0 as u64);
    for operand in &state.inputs {
        inner[operand.at] = within(operand.offset, operand.bytes());
        let (from, to) = (refs[operand.at].addr, inner[operand.at].addr);
        if let Err(error) = convert(&state.host, operand, from, to, operand.sizes) {
            return error.status();
        }
    }
    for operand in &state.outputs {
        inner[operand.at] = within(operand.offset, operand.bytes());
    }
    // The kernel has no reference of a workspace that it did not ask for.
    let n_refs = state.inner.header().n_refs();
    // SAFETY: the stream is this launch's, and the references are those that the kernel was prepared for.
    let status = unsafe { state.inner.launch_within(stream, &inner[..n_refs]) };
    if status != abi::DEVBAY_STATUS_OK {
        return status;
    }
    for operand in &state.outputs {
        let [outside, inside] = operand.sizes;
        let (from, to) = (inner[operand.at].addr, refs[operand.at].addr);
        if let Err(error) = convert(&state.host, operand, from, to, [inside, outside]) {
            return error.status();
        }
    }
    abi::DEVBAY_STATUS_OK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernels::numbers::convert::{Kind, Limits, Value as Number};
    use crate::kernels::test_host::{Array, Value, run, run_with_constants};
    use crate::kernels::testing::Chance;

    /// Numbers as elements of a type, the nearest ones.
    fn array(dtype: DType, shape: &[usize], values: &[f32]) -> Array {
        let kind = Kind::of(dtype).expect("a kind");
        let mut bytes = vec![0; values.len() * 2];
        for (i, &x) in values.iter().enumerate() {
            // SAFETY: there are two bytes for each element.
            unsafe { kind.write(bytes.as_mut_ptr(), i, Number::Float(x.into()), Limits::DEFAULT) };
        }
        Array::raw(dtype, shape, &bytes)
    }

    fn values(dtype: DType, array: &Array) -> Vec<f32> {
        let kind = Kind::of(dtype).expect("a kind");
        let n = array.bytes().len() / 2;
        // SAFETY: there are `n` elements.
        (0..n).map(|i| unsafe { kind.read(array.bytes().as_ptr(), i) }.to_f64() as f32).collect()
    }

    /// A product whose sums f16 would lose: they are made in f32 and rounded once.
    #[test]
    fn sums_are_made_in_single_precision() {
        for dtype in [F16, BF16] {
            let n = 4096;
            let inputs =
                [Some(array(dtype, &[1, n], &vec![1.0; n])), Some(array(dtype, &[n, 1], &vec![1.0; n]))];
            let output = [Some(array(dtype, &[1, 1], &[0.0]))];
            let found = run(Isa::Baseline, "MatMul", &[], &inputs, &output).expect("MatMul");
            assert_eq!(values(dtype, found[0].as_ref().expect("a product")), [4096.0]);
        }
    }

    /// Weights that are constants come converted, and in the layout of the kernel behind.
    #[test]
    fn constants_are_converted_once_and_packed() {
        let mut chance = Chance::new(11);
        let small = |chance: &mut Chance, n: usize| -> Vec<f32> {
            (0..n).map(|_| chance.below(9) as f32 - 4.0).collect()
        };
        let (x, w, b) =
            (small(&mut chance, 2 * 10 * 10), small(&mut chance, 3 * 2 * 3 * 3), small(&mut chance, 3));
        let run_as = |constants: u64, dtype: DType| {
            let inputs = [
                Some(array(dtype, &[1, 2, 10, 10], &x)),
                Some(array(dtype, &[3, 2, 3, 3], &w)),
                Some(array(dtype, &[3], &b)),
            ];
            let output = [Some(array(dtype, &[1, 3, 10, 10], &[0.0; 300]))];
            let attrs = [("pads", Value::Ints(vec![1, 1, 1, 1]))];
            let found =
                run_with_constants(Isa::Baseline, "Conv", &attrs, &inputs, &output, constants).expect("Conv");
            values(dtype, found[0].as_ref().expect("an image"))
        };
        let inputs = [
            Some(Array::of(&[1, 2, 10, 10], &x)),
            Some(Array::of(&[3, 2, 3, 3], &w)),
            Some(Array::of(&[3], &b)),
        ];
        let output = [Some(Array::empty::<f32>(&[1, 3, 10, 10]))];
        let attrs = [("pads", Value::Ints(vec![1, 1, 1, 1]))];
        let expected = run(Isa::Baseline, "Conv", &attrs, &inputs, &output).expect("Conv");
        // Small integers: every sum is exact in f16.
        let expected = expected[0].as_ref().expect("an image").elements::<f32>();
        for constants in [0, 0b10, 0b110, 0b111] {
            assert_eq!(run_as(constants, F16), expected, "{constants:#b}");
        }
    }

    /// The result overflows as the type does, NaN stays NaN, and an empty operand has nothing to convert.
    #[test]
    fn results_are_those_of_the_type() {
        let add = |a: &[f32], b: &[f32]| {
            let inputs = [Some(array(F16, &[a.len()], a)), Some(array(F16, &[b.len()], b))];
            let found =
                run(Isa::Baseline, "Add", &[], &inputs, &[Some(array(F16, &[a.len()], a))]).expect("Add");
            values(F16, found[0].as_ref().expect("sums"))
        };
        assert_eq!(add(&[60000.0, 1.0, 2048.0], &[60000.0, 0.5, 1.0]), [f32::INFINITY, 1.5, 2048.0]);
        assert!(add(&[f32::NAN], &[1.0])[0].is_nan());
        assert_eq!(add(&[], &[]), [0.0; 0]);
    }

    /// More operands than a launch holds references for.
    #[test]
    fn many_operands() {
        let inputs: Vec<_> = (0..20).map(|i| Some(array(BF16, &[2], &[i as f32, 1.0]))).collect();
        let found =
            run(Isa::Baseline, "Sum", &[], &inputs, &[Some(array(BF16, &[2], &[0.0; 2]))]).expect("Sum");
        assert_eq!(values(BF16, found[0].as_ref().expect("sums")), [190.0, 20.0]);
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        let wrong = || Some(array(F16, &[2, 3], &[0.0; 6]));
        let found = run(Isa::Baseline, "MatMul", &[], &[wrong(), wrong()], &[wrong()]);
        assert!(found.is_err());
    }
}
